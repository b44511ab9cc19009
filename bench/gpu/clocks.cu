// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The clocks of all multiprocessors behind a plain C function, for clocks.py:
//
//   nvcc -std=c++17 -O3 -arch=sm_90 -shared -Xcompiler -fPIC bench/gpu/clocks.cu -o clocks.so
#include <cstdint>
#include <cuda/std/chrono>

// One block on each multiprocessor, since it takes most of the shared memory.
constexpr int kShared = 200 << 10;

__global__ void note(uint64_t* cycles, uint64_t* nanoseconds) {
  cycles[blockIdx.x] = static_cast<uint64_t>(clock64());
  const auto now = cuda::std::chrono::system_clock::now().time_since_epoch();
  nanoseconds[blockIdx.x] = static_cast<uint64_t>(
      cuda::std::chrono::duration_cast<cuda::std::chrono::nanoseconds>(now).count());
}

// Notes the clocks of each multiprocessor, in any order. Returns CUDA's error code.
extern "C" int note_clocks(uint64_t* cycles, uint64_t* nanoseconds, int multiprocessors,
                           void* stream) {
  const int error =
      cudaFuncSetAttribute(note, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  note<<<multiprocessors, 1, kShared, static_cast<cudaStream_t>(stream)>>>(cycles, nanoseconds);
  return error != 0 ? error : static_cast<int>(cudaGetLastError());
}
