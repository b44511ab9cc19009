// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of the program share: a folder, runs of the program, tensors in files.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "harness/element.hpp"

namespace perseid {

using harness::Shape;

class CliTest : public testing::Test {
 protected:
  struct Ended {
    int code;
    std::string out, err;
  };

  CliTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                ("perseid_cli_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~CliTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // '@' before a file name stands for the test's folder. `streams`: redirections that replace those
  // to the files whose text is returned. A run ends with 124 after five minutes.
  Ended run(std::string arguments, std::string streams = "") const {
    streams = " >@stdout 2>@stderr </dev/null " + streams;
    std::ofstream(path("stdout")).close();
    std::ofstream(path("stderr")).close();
    const std::string command = in_folder("timeout 300 " PERSEID_CLI " " + arguments + streams);
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of("stdout"), text_of("stderr")};
  }
  std::string in_folder(std::string text) const {
    for (size_t at = 0; (at = text.find('@', at)) != std::string::npos;)
      text.replace(at, 1, folder_.string() + "/");
    return text;
  }
  void expect_ok(const std::string& arguments) const {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, 0) << arguments << "\n" << ended.err;
  }
  void expect_refused(const std::string& arguments, int code, const std::string& words) const {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, code) << arguments << "\n" << ended.err;
    EXPECT_NE((ended.out + ended.err).find(words), std::string::npos)
        << "expected: " << words << "\ngot: " << ended.out << ended.err;
  }
  nlohmann::json json(const std::string& arguments) const {
    const Ended ended = run(arguments + " --json");
    EXPECT_EQ(ended.code, 0) << arguments << "\n" << ended.err;
    return nlohmann::json::parse(ended.out, nullptr, false);
  }

  void write(const std::string& name, const Shape& shape, const std::vector<double>& values,
             DType dtype = f32) const {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(harness::size_of(dtype)));
    const Tensor tensor(bytes.data(), dtype, Dims(shape));
    harness::assign(tensor, values);
    write_file(path(name), {{"", tensor}});
  }
  void expect_file(const std::string& name, const Shape& shape, const std::vector<double>& values,
                   DType dtype = f32, double tolerance = 1e-6) const {
    const size_t colon = name.find(':');
    const File file(path(name.substr(0, colon)));
    const Tensor tensor =
        colon == std::string::npos ? file[size_t{0}] : file[name.substr(colon + 1)];
    EXPECT_EQ(tensor.dtype(), dtype) << name;
    const Dims dims = tensor.shape();
    ASSERT_EQ(Shape(dims.begin(), dims.end()), shape) << name;
    const std::vector<double> got = harness::values_of(tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) {
        EXPECT_NEAR(got[i], values[i], tolerance) << name << " " << i;
      } else {
        EXPECT_EQ(std::isnan(got[i]), std::isnan(values[i])) << name << " " << i;
        if (!std::isnan(values[i])) {
          EXPECT_EQ(got[i], values[i]) << name << " " << i;
        }
      }
    }
  }

  std::string text_of(const std::string& name) const {
    std::ifstream file(path(name));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace perseid
