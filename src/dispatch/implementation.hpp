// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// An entry of an implementation list, and the Executable that it makes for a problem: the problem
// with its kernels on one device. The lists are softmax_list.cpp, attention_list.cpp and
// matmul_list.cpp.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "cpu/executor.hpp"
#include "dispatch/device.hpp"
#include "math/attention_problem.hpp"
#include "math/matmul_problem.hpp"
#include "math/softmax_problem.hpp"

namespace perseid::internal::dispatch {

// The operations, as the types of their problems and arguments.
struct Softmax {
  using Problem = SoftmaxProblem;
  using Forward = SoftmaxForward;
  using Backward = SoftmaxBackward;
};
struct Attention {
  using Problem = AttentionProblem;
  using Forward = AttentionForward;
  using Backward = AttentionBackward;
};
struct NoArguments {};
struct Matmul {
  using Problem = MatmulProblem;
  using Forward = MatmulArguments;
  using Backward = NoArguments;
};

enum class Direction { kForward = PERSEID_FORWARD, kBackward = PERSEID_BACKWARD };

// Immutable, so that any number of threads may run one at once, each with its own workspace of at
// least workspace(direction) bytes, aligned to cpu::kWorkspaceAlignment.
template <class Operation>
class Executable {
 public:
  virtual ~Executable() = default;
  virtual size_t workspace(Direction direction) const = 0;
  virtual Status forward(const typename Operation::Forward& arguments, std::byte* workspace,
                         void* stream) const = 0;
  virtual Status backward(const typename Operation::Backward& arguments, std::byte* workspace,
                          void* stream) const = 0;
  // Which kernels it has, if the implementation's name does not tell.
  virtual std::string kernels() const { return ""; }
};

template <class Operation>
struct Implementation {
  using Problem = typename Operation::Problem;

  const char* name;  // device:kind, without a comma
  // Why it does not take the problem, as the end of a sentence; "" if it does.
  std::string (*refuse)(const Problem& problem, const Device& device);
  // May load or compile a kernel, and keep it in the executable. The device outlives it.
  Status (*make)(const Problem& problem, const Device& device,
                 std::unique_ptr<Executable<Operation>>* executable);
  // The configurations that may be fastest, by name, the built-in choice first. Null, or none:
  // there is one.
  std::vector<std::string> (*configurations)(const Problem& problem,
                                             const Device& device) = nullptr;
  // As make, with one of them.
  Status (*make_with)(const Problem& problem, const Device& device,
                      const std::string& configuration,
                      std::unique_ptr<Executable<Operation>>* executable) = nullptr;
};

// A hash of the source of the kernels that have configurations.
std::string tunable_sources();

// The name that the tuning cache knows a problem by.
std::string problem_key(std::string_view implementation, const MatmulProblem& problem);

// In the order of preference.
std::span<const Implementation<Softmax>> softmax_implementations();
std::span<const Implementation<Attention>> attention_implementations();
std::span<const Implementation<Matmul>> matmul_implementations();

// The kernels that a CPU implementation runs a problem with, and their exact workspaces.
template <class Operation>
struct CpuKernels {
  template <class Arguments>
  using Kernel = void (*)(const typename Operation::Problem&, const Arguments&,
                          const cpu::Execution&);

  Kernel<typename Operation::Forward> forward = nullptr;
  size_t forward_workspace = 0;
  Kernel<typename Operation::Backward> backward = nullptr;  // null: there is no backward
  size_t backward_workspace = 0;
};

template <class Operation>
class CpuExecutable final : public Executable<Operation> {
 public:
  CpuExecutable(const typename Operation::Problem& problem, const Device& device,
                const CpuKernels<Operation>& kernels)
      : problem_(problem), executor_(*device.executor), kernels_(kernels) {}

  size_t workspace(Direction direction) const override {
    return direction == Direction::kForward ? kernels_.forward_workspace
                                            : kernels_.backward_workspace;
  }
  Status forward(const typename Operation::Forward& arguments, std::byte* workspace,
                 void*) const override {
    return run(kernels_.forward, arguments, workspace);
  }
  Status backward(const typename Operation::Backward& arguments, std::byte* workspace,
                  void*) const override {
    return run(kernels_.backward, arguments, workspace);
  }

 private:
  template <class Kernel, class Arguments>
  Status run(const Kernel& kernel, const Arguments& arguments, std::byte* workspace) const {
    if constexpr (requires { arguments.lengths; })
      kernel(with_lengths(problem_, arguments.lengths), arguments, {executor_, workspace});
    else
      kernel(problem_, arguments, {executor_, workspace});
    return {};
  }

  typename Operation::Problem problem_;
  cpu::Executor& executor_;
  CpuKernels<Operation> kernels_;
};

template <class Operation>
Status run_on_cpu(const typename Operation::Problem& problem, const Device& device,
                  const CpuKernels<Operation>& kernels,
                  std::unique_ptr<Executable<Operation>>* executable) {
  *executable = std::make_unique<CpuExecutable<Operation>>(problem, device, kernels);
  return {};
}

}  // namespace perseid::internal::dispatch
