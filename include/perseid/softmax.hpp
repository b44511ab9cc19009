// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Softmax, log-softmax and their gradients. Included by perseid.hpp.
#ifndef PERSEID_SOFTMAX_HPP_
#define PERSEID_SOFTMAX_HPP_

#include <algorithm>
#include <cstdint>

#include "perseid/plan.hpp"

namespace perseid {
inline namespace v0 {

/// The problem of a Softmax plan.
struct SoftmaxOptions {
  DType dtype = f32;               ///< of input and its gradient
  DType out_dtype = DType::kNone;  ///< of output and its gradient; none: dtype
  Dims shape = {};                 ///< of input and output
  int32_t dim = -1;                ///< the softmax dimension; negative: from the last
  bool log = false;                ///< log-softmax
  double scale = 1;                ///< 0 stands for 1, as in the C interface
  bool visible = false;            ///< a boolean mask is given at execution
  bool empty_rows_nan = false;     ///< rows with nothing visible: NaN instead of 0 (log: -inf)
  const char* implementation = nullptr;  ///< names; see the C struct
};

/// The tensors of Softmax::forward.
struct SoftmaxForward {
  Tensor input = {};    ///< shape, dtype
  Tensor output = {};   ///< shape, out_dtype; may be the input exactly
  Tensor visible = {};  ///< bool or u8, each dimension the shape's or 1; true: the element counts
  Tensor lse = {};      ///< optional: the shape with `dim` of size 1, f32 (f64 if computed so)
};

/// The tensors of Softmax::backward.
struct SoftmaxBackward {
  Tensor grad_output = {};  ///< shape, out_dtype
  Tensor output = {};       ///< what forward wrote
  Tensor visible = {};      ///< as in forward
  Tensor grad_input = {};   ///< shape, dtype; may be grad_output exactly
};

/// output = softmax(scale * input) or log_softmax(scale * input) over one dimension.
/// \snippet snippets.cpp softmax
class Softmax : public Plan {
 public:
  /// Makes a plan; throws where no implementation takes the problem.
  /// \snippet snippets.cpp softmax
  Softmax(const Context& context, const SoftmaxOptions& options) : Plan(create(context, options)) {}

  /// Writes output, and lse where given.
  /// \snippet snippets.cpp softmax
  void forward(Stream stream, const SoftmaxForward& with, const Scratch& workspace) const {
    auto args = detail::sized<perseid_softmax_forward_args>();
    args.input = with.input.dl();
    args.output = with.output.dl();
    args.visible = with.visible.dl();
    args.lse = with.lse.dl();
    execute_as(Direction::kForward, perseid_softmax_forward, args, stream, workspace);
  }
  /// Writes grad_input from what forward wrote.
  /// \snippet snippets.cpp softmax
  void backward(Stream stream, const SoftmaxBackward& with, const Scratch& workspace) const {
    auto args = detail::sized<perseid_softmax_backward_args>();
    args.grad_output = with.grad_output.dl();
    args.output = with.output.dl();
    args.visible = with.visible.dl();
    args.grad_input = with.grad_input.dl();
    execute_as(Direction::kBackward, perseid_softmax_backward, args, stream, workspace);
  }

 private:
  static perseid_plan_t create(const Context& context, const SoftmaxOptions& options) {
    auto desc = detail::sized<perseid_softmax_desc>();
    desc.kind = options.log ? PERSEID_LOG_SOFTMAX : PERSEID_SOFTMAX;
    desc.dtype = static_cast<uint32_t>(options.dtype);
    desc.out_dtype = static_cast<uint32_t>(options.out_dtype);
    desc.ndim = static_cast<int32_t>(options.shape.size());
    desc.dim = options.dim;
    std::copy(options.shape.begin(), options.shape.end(), desc.shape);
    desc.scale = options.scale;
    desc.visible = options.visible;
    desc.empty_rows = options.empty_rows_nan ? PERSEID_EMPTY_NAN : PERSEID_EMPTY_ZERO;
    desc.implementation = options.implementation;
    perseid_plan_t plan = nullptr;
    detail::check(perseid_softmax_plan_create(context.get(), &desc, &plan));
    return plan;
  }
};

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_SOFTMAX_HPP_
