// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sets the signals of chunks at given times by the GPU's clock, for matmul_async.py. It is launched
// before the kernel that waits for them, which may take all registers of every multiprocessor, and
// begins when `go` is set.
#include <cuda/ptx>

namespace {

__global__ void deliver_chunks(const volatile unsigned* go, unsigned* signals, int count,
                               unsigned epoch, double interval_ns) {
  using cuda::ptx::get_sreg_globaltimer;  // nanoseconds
  while (*go != epoch) {
  }
  const unsigned long long begin = get_sreg_globaltimer();
  for (int chunk = 0; chunk < count; ++chunk) {
    const auto at = static_cast<unsigned long long>(chunk * interval_ns);
    while (get_sreg_globaltimer() - begin < at) __nanosleep(100);
    __threadfence_system();
    *static_cast<volatile unsigned*>(signals + chunk) = epoch;
  }
}

}  // namespace

extern "C" void deliver(const unsigned* go, unsigned* signals, int count, unsigned epoch,
                        double interval_ns, void* stream) {
  deliver_chunks<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(go, signals, count, epoch,
                                                                interval_ns);
}
