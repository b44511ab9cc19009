// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Matrix products. Included by perseid.hpp.
#ifndef PERSEID_MATMUL_HPP_
#define PERSEID_MATMUL_HPP_

#include <cstdint>

#include "perseid/chunks.hpp"
#include "perseid/plan.hpp"

namespace perseid {
inline namespace v0 {

/// What the scales of 8-bit operands belong to.
enum class Scaling : uint32_t {
  kNone = PERSEID_SCALE_NONE,      ///< no scales
  kTensor = PERSEID_SCALE_TENSOR,  ///< one for a and one for b
  kRow = PERSEID_SCALE_ROW,        ///< one for each row of a and each column of b
  kBlock = PERSEID_SCALE_BLOCK,    ///< one for 1 x 128 elements of a and 128 x 128 of b
};

/// How sums over k of 8-bit products are accumulated.
enum class Accumulation : uint32_t {
  kPromoted = PERSEID_ACCUMULATE_PROMOTED,  ///< in float32
  kFast = PERSEID_ACCUMULATE_FAST,          ///< in the accumulator of the tensor cores
};

/// What is applied to each element of a result.
enum class Activation : uint32_t {
  kNone = PERSEID_ACTIVATION_NONE,           ///< nothing
  kGeluTanh = PERSEID_ACTIVATION_GELU_TANH,  ///< 0.5 y (1 + tanh(sqrt(2 / pi) (y + 0.044715 y^3)))
  kGeluErf = PERSEID_ACTIVATION_GELU_ERF,    ///< 0.5 y (1 + erf(y / sqrt(2)))
  kSilu = PERSEID_ACTIVATION_SILU,           ///< y / (1 + exp(-y))
};

/// The problem of a Matmul plan.
struct MatmulOptions {
  DType dtype = f32;  ///< of a and b
  /// The type of c and c0. None: dtype, or f32 where that is of 8 bits. 16-bit types are multiplied
  /// into themselves or f32, 8-bit types into f16, bf16, f32 and either of the two.
  DType out_dtype = DType::kNone;
  int64_t batch = 1;                 ///< products
  int64_t m = 0;                     ///< rows of a and c
  int64_t n = 0;                     ///< columns of b and c
  int64_t k = 0;                     ///< columns of a, rows of b
  double alpha = 1;                  ///< of a b
  double beta = 0;                   ///< 0: c is not read, even where it holds NaN; 0 with 8-bit c
  bool bias = false;                 ///< a bias is given at execution
  DType b_dtype = DType::kNone;      ///< of b: dtype (also none), or the other 8-bit type
  Scaling scaling = Scaling::kNone;  ///< of 8-bit a and b
  Accumulation accumulation = Accumulation::kPromoted;  ///< of 8-bit a and b
  bool scale_result = false;                            ///< of 8-bit c, given at execution
  Activation activation = Activation::kNone;            ///< applied to alpha a b + beta c0 + bias
  bool amax = false;                                    ///< amax is written at execution
  ChunksView async_a = {};                              ///< that a arrives in, of m or k
  ChunksView async_b = {};                              ///< that b arrives in, of n or k
  ChunksView sink_c = {};                               ///< that c leaves in, of m or n
  perseid_precision precision = PERSEID_PRECISION_DEFAULT;  ///< of products of f32
  const char* implementation = nullptr;                     ///< names; see the C struct
};

/// The tensors of Matmul::execute.
struct MatmulArguments {
  Tensor a = {};        ///< [batch, m, k], or [m, k] for every batch entry
  Tensor b = {};        ///< [batch, k, n], or [k, n] for every batch entry
  Tensor c0 = {};       ///< optional: c where absent. As c
  Tensor bias = {};     ///< [n], dtype or out_dtype; f32 or 16-bit out_dtype with 8-bit a
  Tensor c = {};        ///< [batch, m, n] ([m, n] if batch is 1), out_dtype
  Tensor scale_a = {};  ///< f32: [1]; [batch, m]; [batch, m, ceil(k / 128)], or without the batch
  Tensor scale_b = {};  ///< f32: [1]; [batch, n]; [batch, ceil(k / 128), ceil(n / 128)]
  Tensor scale_result = {};    ///< f32 [1]: c is rounded after it is multiplied
  Tensor amax = {};            ///< [1], f32 (f64 of f64): max |c| before scale_result and rounding
  Arrival arrival_a = {};      ///< where the options have async_a
  Arrival arrival_b = {};      ///< where the options have async_b
  Departure departure_c = {};  ///< where the options have sink_c
};

/// c = activation(alpha * a b + beta * c0 + bias) * scale_result, see perseid_matmul_desc.
/// Transposes are the tensors' strides: Tensor::transposed().
/// \snippet snippets.cpp matmul
class Matmul : public Plan {
 public:
  /// Makes a plan; throws where no implementation takes the problem.
  /// \snippet snippets.cpp matmul
  Matmul(const Context& context, const MatmulOptions& options)
      : Plan(create(options, [&](const perseid_matmul_desc& desc, perseid_plan_t* plan) {
          return perseid_matmul_plan_create(context.get(), &desc, plan);
        })) {}

  /// Makes a plan after measuring the configurations of its implementation with these tensors, and
  /// keeps the fastest for later plans of the same problem: see perseid_matmul_tune.
  /// \snippet snippets.cpp matmul_tuned
  static Matmul tuned(const Context& context, const MatmulOptions& options,
                      const MatmulArguments& with, Stream stream = nullptr) {
    return Matmul(create(options, [&](const perseid_matmul_desc& desc, perseid_plan_t* plan) {
      const Arguments args(with);
      return perseid_matmul_tune(context.get(), &desc, &args.c, stream, plan);
    }));
  }

  /// Writes c.
  /// \snippet snippets.cpp matmul
  void execute(Stream stream, const MatmulArguments& with, const Scratch& workspace) const {
    const Arguments args(with);
    execute_as(Direction::kForward, perseid_matmul_execute, args.c, stream, workspace);
  }

 private:
  struct Arguments {
    explicit Arguments(const MatmulArguments& with)
        : arrival_a(with.arrival_a), arrival_b(with.arrival_b), departure_c(with.departure_c) {
      c.a = with.a.dl();
      c.b = with.b.dl();
      c.c0 = with.c0.dl();
      c.bias = with.bias.dl();
      c.c = with.c.dl();
      c.scale_a = with.scale_a.dl();
      c.scale_b = with.scale_b.dl();
      c.scale_result = with.scale_result.dl();
      c.amax = with.amax.dl();
      c.arrival_a = arrival_a.get();
      c.arrival_b = arrival_b.get();
      c.departure_c = departure_c.get();
    }
    detail::ArrivalArgument arrival_a, arrival_b;
    detail::DepartureArgument departure_c;
    perseid_matmul_args c = detail::sized<perseid_matmul_args>();
  };

  explicit Matmul(perseid_plan_t plan) : Plan(plan) {}

  template <class Make>
  static perseid_plan_t create(const MatmulOptions& options, const Make& make) {
    auto desc = detail::sized<perseid_matmul_desc>();
    desc.dtype = static_cast<uint32_t>(options.dtype);
    desc.out_dtype = static_cast<uint32_t>(options.out_dtype);
    desc.bias = options.bias;
    desc.batch = options.batch;
    desc.m = options.m;
    desc.n = options.n;
    desc.k = options.k;
    desc.alpha = options.alpha;
    desc.beta = options.beta;
    desc.b_dtype = static_cast<uint32_t>(options.b_dtype);
    desc.scaling = static_cast<uint32_t>(options.scaling);
    desc.accumulation = static_cast<uint32_t>(options.accumulation);
    desc.scale_result = options.scale_result;
    desc.activation = static_cast<uint32_t>(options.activation);
    desc.amax = options.amax;
    desc.precision = static_cast<uint32_t>(options.precision);
    desc.implementation = options.implementation;
    desc.zero_alpha = options.alpha == 0;
    desc.zero_batch = options.batch == 0;
    const detail::AsyncOperand async_a(options.async_a), async_b(options.async_b),
        sink_c(options.sink_c);
    desc.async_a = async_a.get();
    desc.async_b = async_b.get();
    desc.sink_c = sink_c.get();
    perseid_plan_t plan = nullptr;
    detail::check(make(desc, &plan));
    return plan;
  }
};

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_MATMUL_HPP_
