// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "streams.hpp"

namespace perseid::cli {

DType wanted_dtype(const Common& common) {
  if (common.dtype.empty()) return DType::kNone;
  const DType dtype = harness::parse_dtype(common.dtype);
  if (!harness::is_floating(dtype))
    bad_input(
        fmt::format("--dtype must be f16, bf16, f32 or f64, or for matmul f8e4m3 or f8e5m2; "
                    "got '{}'",
                    common.dtype));
  return dtype;
}

const char* wanted_implementation(const Common& common) {
  return common.impl.empty() ? nullptr : common.impl.c_str();
}

void same_dtype(std::initializer_list<std::pair<const char*, Tensor>> tensors) {
  const auto& [first_flag, first] = *tensors.begin();
  for (const auto& [flag, tensor] : tensors) {
    if (tensor.present() && tensor.dtype() != first.dtype())
      bad_input(fmt::format("{} is {} and {} is {}; say with --dtype in which type to compute",
                            first_flag, harness::name_of(first.dtype()), flag,
                            harness::name_of(tensor.dtype())));
  }
}

std::string of_rank(std::string name, int32_t rank) {
  const std::string place = "{rank}", number = std::to_string(rank);
  for (size_t at = 0; (at = name.find(place, at)) != std::string::npos; at += number.size())
    name.replace(at, place.size(), number);
  return name;
}

Context open_context_of_rank(Common common, int32_t rank) {
  common.device = of_rank(common.device, rank);
  return open_context(common, common.threads);
}

std::chrono::nanoseconds deadline_of(std::optional<double> milliseconds) {
  constexpr double kLongest = 9e12;  // in nanoseconds it fits 64 bits
  const double deadline = milliseconds.value_or(30000);
  if (!(deadline > 0) || deadline > kLongest)
    bad_input(fmt::format("--deadline must be a time above 0 in milliseconds, got {}", deadline));
  return std::chrono::nanoseconds(std::max<int64_t>(std::llround(deadline * 1e6), 1));
}

perseid_fusion fusion_of(const std::string& text) {
  if (text == "auto") return PERSEID_FUSION_AUTO;
  if (text == "fused") return PERSEID_FUSED;
  if (text == "unfused") return PERSEID_UNFUSED;
  bad_input(fmt::format("--fusion must be auto, fused or unfused, got '{}'", text));
}

Reduction reduction_of(const std::string& text) {
  if (text == "sum") return Reduction::kSum;
  if (text == "average") return Reduction::kAverage;
  bad_input(fmt::format("--reduce must be sum or average, got '{}'", text));
}

Sharding placement_of(const std::string& text) {
  if (text == "contiguous") return Sharding::kContiguous;
  if (text == "zigzag") return Sharding::kZigzag;
  bad_input(fmt::format("--placement must be contiguous or zigzag, got '{}'", text));
}

int32_t dimension(const char* flag, int64_t given, int32_t count) {
  if (given < -count || given >= count)
    bad_input(fmt::format("{} must be from {} to {}, as there are {} dimensions; got {}", flag,
                          -count, count - 1, count, given));
  return static_cast<int32_t>(given < 0 ? given + count : given);
}

void write_report(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << '\n';
  if (!file.flush())
    bad_input(fmt::format("--report {} cannot be written: {}", path, std::strerror(errno)));
}

void Run::finish(TensorFiles& files, const std::string& implementation) {
  files.write();
  if (common_.json) {
    nlohmann::json outputs = nlohmann::json::array();
    for (const auto& [flag, reference, dtype, shape] : files.written())
      outputs.push_back({{"name", flag.substr(2)},
                         {"file", reference},
                         {"dtype", harness::name_of(dtype)},
                         {"shape", shape}});
    const nlohmann::json report = {{"op", op_},
                                   {"implementation", implementation},
                                   {"seconds", seconds_},
                                   {"outputs", outputs}};
    print("{}\n", report.dump());
    return;
  }
  if (common_.quiet) return;
  for (const auto& [flag, reference, dtype, shape] : files.written())
    print("{}: {} {} in {}\n", flag.substr(2), harness::name_of(dtype), harness::to_text(shape),
          reference);
  print("{} in {:.3g} ms\n", implementation, seconds_ * 1e3);
}

void add_run(CLI::App& app, const Common& common, Action& action) {
  CLI::App* run = app.add_subcommand("run", "compute one operation from files into files");
  run->footer(
      "Files are .npy, or FILE.safetensors:NAME. Without --dtype the files' own type is used.\n"
      "Example:\n  perseid run softmax --input x.npy --output y.npy --dim -1");
  run->fallthrough()->require_subcommand(1);
  add_run_softmax(*run, common, action);
  add_run_attention(*run, common, action);
  add_run_matmul(*run, common, action);
  add_run_collective(*run, common, action);
  add_run_context_attention(*run, common, action);
  add_run_dropout_mask(*run, common, action);
}

}  // namespace perseid::cli
