// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// NVRTC, the compiler of kernels, opened at run time; in any CUDA toolkit from version 12 on, or
// alone as the PyPI package nvidia-cuda-nvrtc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace perseid::internal::cuda {

// What to compile: the kernels of one header of cuda/device, by name expressions such as
// "perseid::internal::cuda::softmax_rows_forward<perseid::internal::cuda::SoftmaxConfig{...}>".
struct Program {
  std::string header;
  std::vector<std::string> kernels;
  std::string architecture;  // such as sm_90a, or compute_120 for PTX
  std::string text = "";     // compiled after the header, with its kernels
};

// A module as the driver loads it, and its kernels' names in it, in the program's order.
struct Image {
  std::vector<std::string> names;
  std::string code;
};

struct Version {
  int32_t major = 0, minor = 0;
};

Status compiler_version(Version* version);
// The compute capabilities that NVRTC knows, such as 90.
Status compiler_architectures(std::vector<int32_t>* architectures);
// `log`: what the assembler says of registers and spills, one kernel after another. `option`: one
// more of NVRTC.
Status compile(const Program& program, Image* image, std::string* log = nullptr,
               const char* option = nullptr);
// Compiles programs side by side, in up to as many threads as there are CPUs, each with its own
// status. NVRTC from 12.3 on runs one front end at a time, which takes a twentieth of the time, and
// optimisers and assemblers side by side.
std::vector<Status> compile_side_by_side(std::span<const Program> programs,
                                         std::span<Image> images);

// Hash of an embedded header and of all that it includes.
uint64_t source_hash(const std::string& header);

}  // namespace perseid::internal::cuda
