// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// y = x W and its gradients, by the library's matmul. One object serves every matrix of its shape.
#pragma once

#include "parameters.hpp"
#include "types.hpp"

namespace gpt {

// What executing a plan needs, besides tensors: the device, the threads, and one workspace for all
// plans in turn.
struct Machine {
  explicit Machine(int32_t thread_count) : threads(thread_count) {}

  Threads threads;
  perseid::Context context = perseid::Context::cpu(threads);
  perseid::Workspace workspace;
};

template <class T>
class Linear {
 public:
  // What becomes of y: it is kept in T, kept in Real<T>, or added to a residual stream in Real<T>.
  enum class Output { kT, kReal, kResidual };

  Linear(Machine& machine, int64_t rows, int64_t inputs, int64_t outputs, Output output)
      : rows_(rows),
        inputs_(inputs),
        outputs_(outputs),
        output_(output),
        forward_(machine.context, {.dtype = kT,
                                   .out_dtype = output == Output::kT ? kT : kReal,
                                   .m = rows,
                                   .n = outputs,
                                   .k = inputs,
                                   .beta = output == Output::kResidual ? 1.0 : 0.0}),
        grad_input_(machine.context, {.dtype = kT, .m = rows, .n = inputs, .k = outputs}),
        grad_weight_(machine.context,
                     {.dtype = kT, .out_dtype = kReal, .m = inputs, .n = outputs, .k = rows}) {
    for (const auto* plan : {&forward_, &grad_input_, &grad_weight_}) {
      plan->reserve(machine.workspace);
    }
  }

  // y = x W, or y = residual + x W.
  template <class Y>
  void forward(Machine& machine, const T* x, const T* w, Y* y, const Y* residual = nullptr) const {
    perseid::Tensor c0;
    if (output_ == Output::kResidual) c0 = perseid::Tensor(residual, {rows_, outputs_});
    forward_.execute(nullptr,
                     {.a = {x, {rows_, inputs_}},
                      .b = {w, {inputs_, outputs_}},
                      .c0 = c0,
                      .c = {y, {rows_, outputs_}}},
                     machine.workspace);
  }
  // grad_x = grad_y W^T and grad_w = x^T grad_y.
  void backward(Machine& machine, const T* x, const T* w, const T* grad_y, T* grad_x,
                Real<T>* grad_w) const {
    const perseid::Tensor dy(grad_y, {rows_, outputs_});
    grad_input_.execute(nullptr,
                        {.a = dy,
                         .b = perseid::Tensor(w, {inputs_, outputs_}).transposed(),
                         .c = {grad_x, {rows_, inputs_}}},
                        machine.workspace);
    grad_weight_.execute(nullptr,
                         {.a = perseid::Tensor(x, {rows_, inputs_}).transposed(),
                          .b = dy,
                          .c = {grad_w, {inputs_, outputs_}}},
                         machine.workspace);
  }

 private:
  static constexpr perseid::DType kT = perseid::dtype_of<T>;
  static constexpr perseid::DType kReal = perseid::dtype_of<Real<T>>;

  int64_t rows_, inputs_, outputs_;
  Output output_;
  perseid::Matmul forward_, grad_input_, grad_weight_;
};

}  // namespace gpt
