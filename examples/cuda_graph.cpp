// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A plan captured in a CUDA graph and replayed with new inputs. Executing only launches kernels, so
// that it can be captured; here a softmax. The driver is opened at run time: compiling this needs
// no CUDA. Ends with 77 where there is no GPU.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <perseid/perseid.hpp>
#include <stdexcept>
#include <vector>

namespace {

constexpr int64_t kRows = 64, kColumns = 1000;

// The few functions of the driver that a program with graphs of its own uses anyway.
struct Driver {
  int (*primary_retain)(void** context, int device);
  int (*set_current)(void* context);
  int (*stream_create)(void** stream, unsigned flags);
  int (*begin_capture)(void* stream, int mode);
  int (*end_capture)(void* stream, void** graph);
  int (*instantiate)(void** executable, void* graph, unsigned long long flags);
  int (*launch)(void* executable, void* stream);

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    find(library, "cuDevicePrimaryCtxRetain", primary_retain);
    find(library, "cuCtxSetCurrent", set_current);
    find(library, "cuStreamCreate", stream_create);
    find(library, "cuStreamBeginCapture_v2", begin_capture);
    find(library, "cuStreamEndCapture", end_capture);
    find(library, "cuGraphInstantiateWithFlags", instantiate);
    find(library, "cuGraphLaunch", launch);
  }
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (function == nullptr) throw std::runtime_error(std::string("no ") + name + " in libcuda");
  }
};

void check(int result, const char* what) {
  if (result != 0)
    throw std::runtime_error(std::string(what) + ": CUresult " + std::to_string(result));
}

// The largest difference from the formula.
double error_of(const std::vector<float>& x, const std::vector<float>& y) {
  double worst = 0;
  for (size_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (size_t i = 0; i < kColumns; ++i) sum += std::exp(double{x[row * kColumns + i]});
    for (size_t i = row * kColumns; i < (row + 1) * kColumns; ++i)
      worst = std::max(worst, std::fabs(std::exp(double{x[i]}) / sum - double{y[i]}));
  }
  return worst;
}

int run(const perseid::Context& gpu) {
  const Driver driver;
  void *primary = nullptr, *stream = nullptr, *graph = nullptr, *executable = nullptr;
  check(driver.primary_retain(&primary, 0), "cuDevicePrimaryCtxRetain");
  check(driver.set_current(primary), "cuCtxSetCurrent");
  check(driver.stream_create(&stream, /*non-blocking*/ 1), "cuStreamCreate");

  //! [plan]
  const perseid::Softmax softmax(gpu, {.shape = {kRows, kColumns}});
  const perseid::Memory x(gpu, kRows * kColumns * sizeof(float)), y(gpu, x.size());
  const perseid::Memory workspace(gpu, softmax.workspace_size());
  const auto view = [&](const perseid::Memory& memory) {
    return perseid::Tensor(memory.data(), perseid::f32, {kRows, kColumns}, {}, gpu.device());
  };
  //! [plan]

  //! [capture]
  check(driver.begin_capture(stream, /*relaxed*/ 2), "cuStreamBeginCapture");
  softmax.forward(stream, {.input = view(x), .output = view(y)}, std::span<std::byte>(workspace));
  check(driver.end_capture(stream, &graph), "cuStreamEndCapture");
  check(driver.instantiate(&executable, graph, 0), "cuGraphInstantiate");
  //! [capture]

  double worst = 0;
  std::vector<float> input(kRows * kColumns), output(input.size());
  for (int replay = 0; replay < 3; ++replay) {
    for (size_t i = 0; i < input.size(); ++i)
      input[i] = std::sin(static_cast<float>(i) * static_cast<float>(replay + 1));
    //! [replay]
    gpu.copy(x.data(), input.data(), x.size(), stream);
    check(driver.launch(executable, stream), "cuGraphLaunch");
    gpu.copy(output.data(), y.data(), y.size(), stream);  // after the graph; waits
    //! [replay]
    worst = std::max(worst, error_of(input, output));
  }
  std::printf("three replays of one graph; largest error %g\n", worst);
  return worst < 1e-6 ? 0 : 1;
}

}  // namespace

int main() try {
  try {
    return run(perseid::Context::cuda(0));
  } catch (const perseid::Error& error) {
    if (error.status() != PERSEID_UNSUPPORTED) throw;
    std::printf("skipped: %s\n", error.what());
    return 77;
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
