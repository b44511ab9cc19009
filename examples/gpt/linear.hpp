// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// y = x W and its gradients, by the library's matmul. One object serves every matrix of its shape.
//
// With ranks, each has columns of W, or rows of it. A rank that has columns gets its columns of y,
// and the gradient of x is a sum over ranks; where it has rows, y is.
#pragma once

#include <optional>

#include "machine.hpp"
#include "parameters.hpp"
#include "ranks.hpp"
#include "types.hpp"

namespace gpt {

template <class T>
class Linear {
 public:
  // What becomes of y: it is kept in T, kept in Real<T>, or added to a residual stream in Real<T>.
  enum class Output { kT, kReal, kResidual };
  // What ranks have of W.
  enum class Has { kAll, kColumns, kRows };

  // `inputs` and `outputs` are those of this rank.
  Linear(Machine& machine, int64_t rows, int64_t inputs, int64_t outputs, Output output,
         const Ranks* ranks = nullptr, Has has = Has::kAll)
      : rows_(rows),
        inputs_(inputs),
        outputs_(outputs),
        output_(output),
        grad_weight_(machine.context,
                     {.dtype = kT, .out_dtype = kReal, .m = inputs, .n = outputs, .k = rows}) {
    const perseid::DType out = output == Output::kT ? kT : kReal;
    const auto sum = [&](perseid::DType dtype, int64_t n, int64_t k) {
      return perseid::MatmulReduce(
          machine.context, ranks->group(),
          {.dtype = kT, .out_dtype = dtype, .all_reduce = true, .m = rows, .n = n, .k = k});
    };
    if (ranks != nullptr && has == Has::kRows) {
      forward_sum_.emplace(sum(out, outputs, inputs));
      machine.reserve(*forward_sum_, {perseid::Direction::kForward});
    } else {
      forward_.emplace(machine.context,
                       perseid::MatmulOptions{.dtype = kT,
                                              .out_dtype = out,
                                              .m = rows,
                                              .n = outputs,
                                              .k = inputs,
                                              .beta = output == Output::kResidual ? 1.0 : 0.0});
      machine.reserve(*forward_, {perseid::Direction::kForward});
    }
    if (ranks != nullptr && has == Has::kColumns) {
      grad_input_sum_.emplace(sum(kT, inputs, outputs));
      machine.reserve(*grad_input_sum_, {perseid::Direction::kForward});
    } else {
      grad_input_.emplace(machine.context, perseid::MatmulOptions{
                                               .dtype = kT, .m = rows, .n = inputs, .k = outputs});
      machine.reserve(*grad_input_, {perseid::Direction::kForward});
    }
    machine.reserve(grad_weight_, {perseid::Direction::kForward});
  }

  // y = x W, or y = residual + x W. W is the matrix at `place` of the weights.
  template <class Y>
  void forward(Machine& machine, const Shared<T>& x, const Weights<T>& weights, const Matrix& place,
               Shared<Y>& y, const Shared<Y>* residual = nullptr) const {
    const perseid::Tensor a = x.reading({rows_, inputs_}),
                          b = weights.rounded().reading({inputs_, outputs_}, place.offset);
    if (forward_sum_) {
      forward_sum_->execute({.a = a, .b = b, .c = y.writing({rows_, outputs_})},
                            machine.workspace());
      if (output_ == Output::kResidual)
        add(machine.threads, residual->read(), rows_ * outputs_, y.change());
      return;
    }
    perseid::Tensor c0;
    if (output_ == Output::kResidual) c0 = residual->reading({rows_, outputs_});
    forward_->execute(nullptr, {.a = a, .b = b, .c0 = c0, .c = y.writing({rows_, outputs_})},
                      machine.workspace());
  }
  // grad_x = grad_y W^T, and at `place` of the gradient x^T grad_y.
  void backward(Machine& machine, const Shared<T>& x, const Weights<T>& weights,
                const Matrix& place, const Shared<T>& grad_y, Shared<T>& grad_x,
                Shared<Real<T>>& gradient) const {
    const perseid::Tensor dy = grad_y.reading({rows_, outputs_});
    const perseid::Tensor w =
        weights.rounded().reading({inputs_, outputs_}, place.offset).transposed();
    const perseid::Tensor dx = grad_x.writing({rows_, inputs_});
    if (grad_input_sum_) {
      grad_input_sum_->execute({.a = dy, .b = w, .c = dx}, machine.workspace());
    } else {
      grad_input_->execute(nullptr, {.a = dy, .b = w, .c = dx}, machine.workspace());
    }
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
  // One of each two.
  std::optional<perseid::Matmul> forward_, grad_input_;
  std::optional<perseid::MatmulReduce> forward_sum_, grad_input_sum_;
  perseid::Matmul grad_weight_;
};

}  // namespace gpt
