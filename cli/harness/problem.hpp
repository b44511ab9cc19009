// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// One problem of any operation. Its forms as text are in problem_text.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/element.hpp"

namespace perseid::harness {

enum class Op : uint32_t { kSoftmax = 1, kAttention = 2, kMatmul = 4, kDropoutMask = 8 };
const char* name_of(Op op);

// A member of an enumeration of perseid.h. Numbers outside it are kept: fuzzing passes them on.
template <class Names>
struct Choice {
  uint32_t value = 0;
};
struct DTypeNames {
  static constexpr const char* kNames[] = {"none", "f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"};
};
struct LayoutNames {
  static constexpr const char* kNames[] = {"bshd", "bhsd"};
};
struct CausalNames {
  static constexpr const char* kNames[] = {"none", "top-left", "bottom-right"};
};
struct EmptyRowsNames {
  static constexpr const char* kNames[] = {"zero", "nan"};
};
struct ScalingNames {
  static constexpr const char* kNames[] = {"none", "tensor", "row", "block"};
};
struct AccumulationNames {
  static constexpr const char* kNames[] = {"promoted", "fast"};
};
struct PrecisionNames {
  static constexpr const char* kNames[] = {"default", "tf32"};
};
struct ActivationNames {
  static constexpr const char* kNames[] = {"none", "gelu-tanh", "gelu-erf", "silu"};
};
struct MaskTypeNames {
  static constexpr const char* kNames[] = {"bool", "uint8"};
};
struct IndexTypeNames {
  static constexpr const char* kNames[] = {"int32", "int64"};
};
// How random inputs are drawn (see data.hpp).
struct ValuesNames {
  static constexpr const char* kNames[] = {"normal",   "large",  "small",
                                           "constant", "poison", "special"};
};
enum class Values : uint32_t { kNormal, kLarge, kSmall, kConstant, kPoison, kSpecial };
// How tensors lie in memory (see data.hpp).
struct StridesNames {
  static constexpr const char* kNames[] = {"packed",   "padded",   "permuted", "spread",
                                           "reversed", "repeated", "mixed",    "aligned"};
};
enum class Strides : uint32_t {
  kPacked,
  kPadded,
  kPermuted,
  kSpread,
  kReversed,
  kRepeated,
  kMixed,   // one of those before
  kAligned  // rows contiguous, and 16 bytes and more apart, in any order
};
struct ExpectNames {
  static constexpr const char* kNames[] = {"ok", "refused"};
};
// perseid_gradient bits; in text "query,key,value,bias", "all" or "none".
struct Gradients {
  uint32_t bits = 0;
};

struct Problem {
  Op op = Op::kAttention;
  Choice<DTypeNames> dtype = {PERSEID_F32};
  std::string impl;
  int64_t threads = 0;

  double scale = 0;
  Shape visible;  // empty: none
  bool backward = false;
  bool lse = false;

  Shape shape;
  int64_t dim = -1;
  bool log = false;
  bool in_place = false;
  Choice<EmptyRowsNames> empty_rows;
  Choice<DTypeNames> output_dtype;

  int64_t batch = 1, heads = 1, kv_heads = 0, q_len = 0, kv_len = 0, head_dim = 0, value_dim = 0;
  Choice<LayoutNames> layout;
  Choice<CausalNames> causal;
  Shape window;  // empty: none; else left, right
  bool window_bottom_right = false;
  Shape bias;  // empty: none
  Choice<DTypeNames> bias_dtype;
  double dropout = 0;
  uint64_t seed = 0, offset = 0;
  Shape cu_seqlens_q, cu_seqlens_kv;  // both given: ragged
  int64_t total_q = 0, total_kv = 0;  // 0: where the cumulative lengths end
  Shape q_lens, kv_lens;
  Shape kv_starts;                        // instead of cu_seqlens_kv
  int64_t kv_batch = 0;                   // 0: batch
  Shape kv_index;                         // with kv_batch
  int64_t max_q_len = 0, max_kv_len = 0;  // of the plan, where more than those of the tensors
  int64_t num_splits = 0;
  Gradients gradients;  // none, with `backward`: all
  bool grad_lse = false;
  bool deterministic = false;

  int64_t m = 0, n = 0, k = 0;
  double alpha = 1, beta = 0;
  bool transpose_a = false, transpose_b = false;
  bool shared_a = false, shared_b = false;  // one matrix for the whole batch
  Choice<DTypeNames> b_dtype;
  Choice<ScalingNames> scaling;
  Choice<AccumulationNames> accumulation;
  Choice<PrecisionNames> precision;
  bool scale_result = false;
  Choice<ActivationNames> activation;
  bool amax = false;

  uint64_t data_seed = 1;
  Choice<ValuesNames> values;
  double input_scale = 1;  // what random inputs are multiplied by
  Choice<StridesNames> strides;
  int64_t misalign = 0;  // bytes added to every address
  Choice<MaskTypeNames> mask_dtype;
  Choice<IndexTypeNames> index_dtype;
  int64_t launches = 1;  // of one plan, each over tensors of its own, before any is waited for
  std::string fault;     // a wrong argument put into the call (see launch.hpp)
  Choice<ExpectNames> expect;

  bool ragged() const { return !cu_seqlens_q.empty() || !cu_seqlens_kv.empty(); }
  DType type() const { return static_cast<DType>(dtype.value); }
  DType type_of_b() const {
    return b_dtype.value == 0 ? type() : static_cast<DType>(b_dtype.value);
  }
  // The dtype of the result: output_dtype where it is given.
  DType result_type() const {
    if (output_dtype.value != 0) return static_cast<DType>(output_dtype.value);
    return is_float8(type()) ? f32 : type();
  }
  DType type_of_bias() const {
    if (bias_dtype.value != 0) return static_cast<DType>(bias_dtype.value);
    return is_float8(type()) ? f32 : type();
  }
  // The longest sequences, the gradients and the totals with their defaults filled in.
  int64_t longest_q() const;
  int64_t longest_kv() const;
  int64_t rows_q() const;
  int64_t rows_kv() const;
  int64_t key_entries() const { return kv_batch == 0 ? batch : kv_batch; }
  int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t value_size() const { return value_dim == 0 ? head_dim : value_dim; }
  uint32_t wanted_gradients() const;
  bool has_backward() const;
};

}  // namespace perseid::harness
