// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "problems.hpp"

#include <fstream>
#include <set>

namespace gpt {

void write_problems(const std::string& path, const Config& config, const std::string& dtype) {
  std::ofstream file(path);
  const std::string real = dtype == "f64" ? "f64" : "f32";
  const auto number = [](const char* name, auto value) {
    return std::string(", \"") + name + "\": " + std::to_string(value);
  };
  const auto text = [](const char* name, const std::string& value) {
    return std::string(", \"") + name + "\": \"" + value + "\"";
  };
  const auto flag = [](const char* name) { return std::string(", \"") + name + "\": true"; };
  std::set<std::string> written;  // layers of one shape have one line
  const auto write = [&](const char* op, const std::string& type, const std::string& fields) {
    const std::string line = std::string("{\"op\": \"") + op + "\"" + text("dtype", type) + fields;
    if (written.insert(line).second) file << line << "}\n";
  };

  const std::string attention = number("batch", config.batch) + number("heads", config.heads) +
                                number("q_len", config.context) + number("kv_len", config.context) +
                                number("head_dim", config.head_dim()) + text("causal", "top-left") +
                                number("dropout", config.dropout) + flag("lse") + flag("backward");
  write("attention", dtype, attention);

  const int64_t rows = config.tokens(), width = config.width;
  struct Shape {
    int64_t inputs, outputs;
    bool residual, real;  // adds to the residual stream; writes Real<T>
  };
  const Shape shapes[] = {{width, 3 * width, false, false},
                          {width, width, true, true},
                          {width, 4 * width, false, false},
                          {4 * width, width, true, true},
                          {width, kVocabulary, false, true}};
  const auto matmul = [&](int64_t m, int64_t n, int64_t k, const std::string& fields) {
    write("matmul", dtype, number("m", m) + number("n", n) + number("k", k) + fields);
  };
  const std::string to_real = real == dtype ? "" : text("output_dtype", real);
  for (const auto& shape : shapes) {
    matmul(rows, shape.outputs, shape.inputs,
           (shape.residual ? number("beta", 1.0) : "") + (shape.real ? to_real : ""));
    matmul(rows, shape.inputs, shape.outputs, flag("transpose_b"));
    matmul(shape.inputs, shape.outputs, rows, flag("transpose_a") + to_real);
  }

  const std::string rows_of_bytes =
      ", \"shape\": [" + std::to_string(rows) + ", " + std::to_string(kVocabulary) + "]";
  write("softmax", real, rows_of_bytes + flag("log") + flag("in_place"));
  write("softmax", dtype, rows_of_bytes + flag("log") + flag("backward") + to_real);

  file.close();
  if (!file) {
    throw perseid::Error(PERSEID_IO_ERROR,
                         "cannot write '" + path + "'; give a path in a writable folder");
  }
}

}  // namespace gpt
