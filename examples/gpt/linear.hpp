// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// y = x W and its gradients, by the library's matmul. One object serves every matrix of its shape.
#pragma once

#include "machine.hpp"
#include "parameters.hpp"
#include "types.hpp"

namespace gpt {

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
      machine.reserve(*plan, {perseid::Direction::kForward});
    }
  }

  // y = x W, or y = residual + x W. W is the matrix at `place` of the weights.
  template <class Y>
  void forward(Machine& machine, const Shared<T>& x, const Weights<T>& weights, const Matrix& place,
               Shared<Y>& y, const Shared<Y>* residual = nullptr) const {
    perseid::Tensor c0;
    if (output_ == Output::kResidual) c0 = residual->reading({rows_, outputs_});
    forward_.execute(nullptr,
                     {.a = x.reading({rows_, inputs_}),
                      .b = weights.rounded().reading({inputs_, outputs_}, place.offset),
                      .c0 = c0,
                      .c = y.writing({rows_, outputs_})},
                     machine.workspace());
  }
  // grad_x = grad_y W^T, and at `place` of the gradient x^T grad_y.
  void backward(Machine& machine, const Shared<T>& x, const Weights<T>& weights,
                const Matrix& place, const Shared<T>& grad_y, Shared<T>& grad_x,
                Shared<Real<T>>& gradient) const {
    const perseid::Tensor dy = grad_y.reading({rows_, outputs_});
    const perseid::Tensor w = weights.rounded().reading({inputs_, outputs_}, place.offset);
    grad_input_.execute(nullptr,
                        {.a = dy, .b = w.transposed(), .c = grad_x.writing({rows_, inputs_})},
                        machine.workspace());
    grad_weight_.execute(nullptr,
                         {.a = x.reading({rows_, inputs_}).transposed(),
                          .b = dy,
                          .c = gradient.writing({inputs_, outputs_}, place.offset)},
                         machine.workspace());
  }

 private:
  static constexpr perseid::DType kT = perseid::dtype_of<T>;
  static constexpr perseid::DType kReal = perseid::dtype_of<Real<T>>;

  int64_t rows_, inputs_, outputs_;
  Output output_;
  perseid::Matmul forward_, grad_input_, grad_weight_;
};

}  // namespace gpt
