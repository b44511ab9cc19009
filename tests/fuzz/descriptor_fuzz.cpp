// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Any bytes, read as a descriptor, tensors and a workspace, give a status and no crash: plans are
// made, and executed by the implementation that is preferred and by the reference. The descriptors
// are mostly small and mostly right, with a wrong field now and then; every tensor has exactly the
// memory that its shape and strides reach, so that a sanitizer sees one element too far.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <random>

#include "chunk_tables.hpp"
#include "driver.hpp"
#include "fuzz_input.hpp"
#include "perseid/perseid.h"

namespace {

using namespace perseid_fuzz;

constexpr DLDataType kBool{kDLBool, 8, 1}, kI32{kDLInt, 32, 1}, kI64{kDLInt, 64, 1};

DLDataType dl_type(uint32_t dtype) {
  switch (dtype) {
    case PERSEID_F16:
      return {kDLFloat, 16, 1};
    case PERSEID_BF16:
      return {kDLBfloat, 16, 1};
    case PERSEID_F64:
      return {kDLFloat, 64, 1};
    default:
      return {kDLFloat, 32, 1};
  }
}

// A DLTensor and the memory it reaches. Sizes are small or, where the shape is spoilt, refused
// before any element is touched.
class FuzzTensor {
 public:
  FuzzTensor() = default;
  FuzzTensor(Input& in, DLDataType dtype, std::vector<int64_t> shape) : shape_(std::move(shape)) {
    const int spoilt = in.rarely(32) ? static_cast<int>(in.below(8)) : -1;
    if (spoilt == 0 && rank() > 0) shape_[static_cast<size_t>(in.below(rank()))] = in.below(12) - 1;
    if (spoilt == 1) shape_.push_back(1);
    if (spoilt == 2 && rank() > 0) shape_.pop_back();
    if (spoilt == 3) dtype = {in.byte(), in.pick<uint8_t>({1, 8, 16, 32, 64}), 1};
    place_strides(in);
    allocate(in, dtype, spoilt == 4);
    if (spoilt == 5) tensor_.device = {in.pick({kDLCUDA, kDLROCM}), 0};
    if (spoilt == 6) tensor_.data = nullptr;
    if (spoilt == 7) tensor_.ndim = std::min(static_cast<int32_t>(in.byte()) - 128, rank());
    present_ = !in.rarely(128);
  }

  const DLTensor* get() { return present_ ? &tensor_ : nullptr; }

  // Lengths of 0 to `longest`, or their running sum; now and then a hostile one.
  void fill_lengths(Input& in, int64_t longest, bool summed) {
    const int64_t elements = shape_.empty() ? 0 : std::clamp<int64_t>(shape_[0], 0, kLongest);
    const size_t bytes = tensor_.dtype.bits / 8;
    if (tensor_.data == nullptr || (bytes != 4 && bytes != 8)) return;
    int64_t sum = 0;
    for (int64_t i = 0; i < elements; ++i) {
      const int64_t length =
          in.rarely(64) ? in.size(255) : in.below(std::clamp<int64_t>(longest, 0, 255) + 1);
      const int64_t value = summed ? sum : length;
      // Unsigned, because a hostile length may wrap.
      sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(length));
      std::memcpy(first() + i * strides_[0] * static_cast<int64_t>(bytes), &value, bytes);
    }
  }

 private:
  // The most of a dimension and of a tensor for which there is memory.
  static constexpr int64_t kLongest = 4096, kMostElements = int64_t{1} << 22;

  int32_t rank() const { return static_cast<int32_t>(shape_.size()); }
  std::byte* first() { return static_cast<std::byte*>(tensor_.data) + tensor_.byte_offset; }

  void place_strides(Input& in) {
    strides_.assign(shape_.size(), 0);
    const int way = static_cast<int>(in.below(8));
    int64_t stride = way == 3 ? 2 : 1;
    for (size_t i = 0; i < shape_.size(); ++i) {
      const size_t axis = way == 1 ? i : shape_.size() - 1 - i;
      strides_[axis] = way == 2 ? -stride : stride;
      stride *= std::clamp<int64_t>(shape_[axis], 1, kLongest);
      if (way == 4) stride += 3;
    }
    if (way == 5 && rank() > 0) strides_[static_cast<size_t>(in.below(rank()))] = 0;
    if (way == 6)
      for (int64_t& step : strides_) step = in.below(9) - 4;
    if (way == 7) row_major_ = true;
  }

  void allocate(Input& in, DLDataType dtype, bool misaligned) {
    const int64_t bytes = std::max(dtype.bits / 8, 1);
    int64_t low = 0, high = 0;
    bool empty = false;
    for (size_t i = 0; i < shape_.size(); ++i) {
      // A spoilt or hostile size is refused or not executed; there is no memory for it.
      const int64_t size = std::clamp<int64_t>(shape_[i], 0, kLongest);
      empty |= size == 0;
      const int64_t reach = std::max<int64_t>(size - 1, 0) * strides_[i];
      (reach < 0 ? low : high) += reach;
    }
    if (high - low >= kMostElements) low = high = 0;
    const int64_t misalignment = misaligned ? in.below(8) : in.below(4) * bytes;
    const int64_t size = empty ? misalignment : (high - low + 1) * bytes + misalignment;
    memory_.reset(static_cast<std::byte*>(std::malloc(static_cast<size_t>(size))));
    const uint8_t fill = in.byte();
    for (int64_t i = 0; i < size; ++i)
      memory_.get()[i] = static_cast<std::byte>(fill == 255 ? 255 : i * fill >> 1);
    tensor_ = {.data = memory_.get(),
               .device = {kDLCPU, 0},
               .ndim = rank(),
               .dtype = dtype,
               .shape = shape_.data(),
               .strides = row_major_ ? nullptr : strides_.data(),
               .byte_offset = static_cast<uint64_t>(misalignment - (empty ? 0 : low * bytes))};
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<int64_t> shape_, strides_;
  std::unique_ptr<std::byte, Free> memory_;
  DLTensor tensor_{};
  bool row_major_ = false, present_ = false;
};

perseid_context_t context() {
  static const perseid_context_t kContext = [] {
    perseid_context_options options{};
    options.struct_size = sizeof options;
    options.threads = 2;
    perseid_context_t made = nullptr;
    require(perseid_context_create(&options, &made) == PERSEID_OK, "a CPU context can be made");
    return made;
  }();
  return kContext;
}

perseid_status checked(perseid_status status) {
  require(status >= PERSEID_OK && status < PERSEID_INTERNAL, "no internal error");
  require(status == PERSEID_OK || perseid_last_error()[0] != '\0', "a failure has its sentence");
  return status;
}

// Executes with a workspace of exactly the size that the plan asks for, or sometimes less.
template <class Execute>  // (workspace, bytes) -> perseid_status
void execute(Input& in, perseid_plan_t plan, perseid_direction direction, Execute call) {
  size_t bytes = 0;
  const perseid_status sized = checked(perseid_plan_workspace_size(plan, direction, &bytes));
  constexpr size_t kLargest = size_t{64} << 20;
  if (in.hostile() || bytes > kLargest) return;
  const bool small = sized == PERSEID_OK && bytes > 0 && in.rarely(16);
  const size_t given = small ? bytes - 1 : bytes;
  // At an odd address: any alignment is promised to do.
  const std::unique_ptr<std::byte[]> memory(new std::byte[given + 1]);
  const perseid_status status = checked(call(memory.get() + 1, given));
  require(!small || status != PERSEID_OK, "a workspace that is too small is refused");
}

// Makes the plan by the preferred implementation and by the reference, and uses both.
template <class Descriptor, class Create, class Use>
void for_both(Input& in, Descriptor desc, Create create, Use use) {
  if (in.rarely(64)) desc.implementation = "cpu:absent";
  const bool free_choice = desc.implementation == nullptr;
  for (const char* name : {desc.implementation, "cpu:reference"}) {
    desc.implementation = name;
    perseid_plan_t plan = nullptr;
    const perseid_status status = checked(create(context(), Resized(in, desc).get(), &plan));
    require((status == PERSEID_OK) == (plan != nullptr), "a plan comes with PERSEID_OK alone");
    if (plan == nullptr) continue;
    const char* text = nullptr;
    require(perseid_plan_explain(plan, &text) == PERSEID_OK && text[0] != '\0', "plans explain");
    Input arguments = in;  // the same for both
    use(arguments, plan);
    perseid_plan_destroy(plan);
    if (!free_choice) break;
  }
}

void softmax(Input& in) {
  perseid_softmax_desc desc{};
  desc.struct_size = in.struct_size(sizeof desc);
  desc.kind = in.choice(2);
  desc.dtype = 1 + in.choice(4);
  desc.out_dtype = in.choice(5);
  desc.ndim = in.rarely(64) ? in.byte() - 128 : static_cast<int32_t>(1 + in.below(4));
  desc.dim =
      in.rarely(64) ? in.byte() - 128 : static_cast<int32_t>(in.below(2 * desc.ndim) - desc.ndim);
  const int32_t rank = std::clamp(desc.ndim, 0, PERSEID_MAX_DIMS);
  for (int32_t i = 0; i < rank; ++i) desc.shape[i] = in.size(i == 0 ? 40 : 9);
  desc.scale = in.number();
  desc.visible = in.choice(2);
  desc.empty_rows = in.choice(2);
  const DLDataType type = dl_type(desc.dtype);
  const DLDataType out_type = dl_type(desc.out_dtype == 0 ? desc.dtype : desc.out_dtype);
  const bool in_double = type.bits == 64 || out_type.bits == 64;
  const DLDataType lse_type = dl_type(in_double ? PERSEID_F64 : PERSEID_F32);
  const std::vector<int64_t> shape(desc.shape, desc.shape + rank);
  for_both(in, desc, perseid_softmax_plan_create, [&](Input& more, perseid_plan_t plan) {
    std::vector<int64_t> mask_shape = shape, lse_shape = shape;
    if (more.rarely(2) && rank > 0) mask_shape[static_cast<size_t>(more.below(rank))] = 1;
    const int32_t dim = desc.dim < 0 ? desc.dim + rank : desc.dim;
    if (dim >= 0 && dim < rank) lse_shape[static_cast<size_t>(dim)] = 1;
    FuzzTensor input(more, type, shape), output(more, out_type, shape);
    FuzzTensor visible(more, kBool, mask_shape), lse(more, lse_type, lse_shape);
    FuzzTensor grad_input(more, type, shape), grad_output(more, out_type, shape);
    perseid_softmax_forward_args forward{};
    forward.struct_size = more.struct_size(sizeof forward);
    forward.input = input.get();
    forward.output = more.rarely(4) ? input.get() : output.get();
    forward.visible = (desc.visible != 0) != more.rarely(16) ? visible.get() : nullptr;
    forward.lse = more.rarely(2) ? lse.get() : nullptr;
    execute(more, plan, PERSEID_FORWARD, [&](void* workspace, size_t bytes) {
      return perseid_softmax_forward(plan, Resized(more, forward).get(), workspace, bytes, nullptr);
    });
    perseid_softmax_backward_args backward{};
    backward.struct_size = more.struct_size(sizeof backward);
    backward.grad_output = grad_output.get();
    backward.output = output.get();
    backward.visible = forward.visible;
    backward.grad_input = more.rarely(4) ? grad_output.get() : grad_input.get();
    execute(more, plan, PERSEID_BACKWARD, [&](void* workspace, size_t bytes) {
      return perseid_softmax_backward(plan, Resized(more, backward).get(), workspace, bytes,
                                      nullptr);
    });
  });
}

void matmul(Input& in) {
  perseid_matmul_desc desc{};
  desc.struct_size = in.struct_size(sizeof desc);
  desc.dtype = 1 + in.choice(4);
  desc.out_dtype = in.rarely(4) ? in.choice(5) : 0;
  desc.bias = in.choice(2);
  desc.batch = in.size(3);
  desc.m = in.size(40);
  desc.n = in.size(70);
  desc.k = in.size(40);
  desc.alpha = in.number();
  desc.beta = in.number();
  desc.zero_alpha = in.choice(2) != 0 && desc.alpha == 0;
  desc.zero_batch = desc.batch == 0 || in.rarely(64);
  const FuzzChunks of_a(in, desc.m, PERSEID_CHUNK_M, desc.k, PERSEID_CHUNK_K);
  const FuzzChunks of_b(in, desc.n, PERSEID_CHUNK_N, desc.k, PERSEID_CHUNK_K);
  const FuzzChunks of_c(in, desc.m, PERSEID_CHUNK_M, desc.n, PERSEID_CHUNK_N);
  if (in.rarely(3)) desc.async_a = of_a.get();
  if (in.rarely(3)) desc.async_b = of_b.get();
  if (in.rarely(3)) desc.sink_c = of_c.get();
  const DLDataType type = dl_type(desc.dtype);
  const DLDataType out_type = dl_type(desc.out_dtype == 0 ? desc.dtype : desc.out_dtype);
  for_both(in, desc, perseid_matmul_plan_create, [&](Input& more, perseid_plan_t plan) {
    require(desc.struct_size != sizeof desc || ((desc.async_a == nullptr || of_a.right()) &&
                                                (desc.async_b == nullptr || of_b.right()) &&
                                                (desc.sink_c == nullptr || of_c.right())),
            "a wrong chunk table is refused");
    const auto operand = [&](DLDataType dtype, int64_t rows, int64_t columns) {
      if (more.rarely(3)) return FuzzTensor(more, dtype, {rows, columns});
      return FuzzTensor(more, dtype, {desc.batch, rows, columns});
    };
    FuzzTensor a = operand(type, desc.m, desc.k), b = operand(type, desc.k, desc.n);
    FuzzTensor c0 = operand(out_type, desc.m, desc.n), c = operand(out_type, desc.m, desc.n);
    FuzzTensor bias(more, more.rarely(3) ? out_type : type, {desc.n});
    perseid_matmul_args args{};
    args.struct_size = more.struct_size(sizeof args);
    args.a = a.get();
    args.b = b.get();
    args.c0 = more.rarely(2) ? c0.get() : nullptr;
    args.bias = desc.bias != 0 ? bias.get() : nullptr;
    args.c = c.get();
    FuzzSignals a_signals(more, of_a), b_signals(more, of_b), c_signals(more, of_c);
    const Resized arrival_a(more, a_signals.arrival), arrival_b(more, b_signals.arrival);
    const Resized departure(more, c_signals.sink);
    if ((desc.async_a != nullptr) != more.rarely(32)) args.arrival_a = arrival_a.get();
    if ((desc.async_b != nullptr) != more.rarely(32)) args.arrival_b = arrival_b.get();
    if ((desc.sink_c != nullptr) != more.rarely(32)) args.departure_c = departure.get();
    for (size_t chunk = 0; chunk < c_signals.count; ++chunk)
      c_signals.words[chunk] = c_signals.epoch - 1;
    execute(more, plan, PERSEID_FORWARD, [&](void* workspace, size_t bytes) {
      const perseid_status status =
          perseid_matmul_execute(plan, Resized(more, args).get(), workspace, bytes, nullptr);
      check_signals(desc, args, a_signals, b_signals, c_signals, status);
      return status;
    });
  });
}

perseid_attention_desc attention_desc(Input& in) {
  perseid_attention_desc desc{};
  desc.struct_size = in.struct_size(sizeof desc);
  desc.dtype = 1 + in.choice(4);
  desc.layout = in.choice(2);
  desc.causal = in.choice(3);
  desc.batch = in.size(3);
  desc.kv_heads = in.size(2);
  desc.heads =
      in.rarely(8) ? in.size(4) : std::clamp<int64_t>(desc.kv_heads, 1, 2) * (1 + in.below(3));
  desc.q_len = in.size(in.rarely(4) ? 70 : 9);
  desc.kv_len = in.size(in.rarely(4) ? 140 : 9);
  desc.head_dim = in.size(in.rarely(4) ? 70 : 9);
  if (desc.head_dim == 0 && !in.rarely(16)) desc.head_dim = 16;
  desc.value_dim = in.rarely(2) ? in.size(20) : 0;
  desc.scale = in.number();
  desc.dropout = in.rarely(2) ? in.number() : 0;
  desc.window = in.rarely(3);
  desc.window_left = in.rarely(4) ? -1 : in.size(9);
  desc.window_right = in.rarely(4) ? -1 : in.size(9);
  desc.visible = in.rarely(3);
  desc.bias = in.rarely(3);
  desc.bias_dtype = in.rarely(4) ? in.choice(5) : 0;
  const int64_t scores[] = {desc.batch, desc.heads, desc.q_len, desc.kv_len};
  for (int i = 0; i < 4; ++i) desc.bias_shape[i] = in.rarely(3) ? 1 : scores[i];
  desc.ragged = in.rarely(3);
  desc.kv_lens = in.rarely(3);
  desc.total_q = in.hostile() || in.rarely(8) ? in.size(30) : desc.batch * desc.q_len;
  desc.total_kv = in.hostile() || in.rarely(8) ? in.size(30) : desc.batch * desc.kv_len;
  desc.gradients =
      in.choice(8) | (desc.bias != 0 || in.rarely(32) ? uint32_t{PERSEID_GRAD_BIAS} : 0u);
  desc.deterministic = in.choice(2);
  desc.accumulate = in.rarely(3) ? in.byte() & (in.rarely(16) ? 31u : desc.gradients) : 0;
  desc.zero_batch = desc.batch == 0 || in.rarely(64);
  desc.window_bottom_right = desc.causal == 0 && desc.window != 0 && in.rarely(2);
  desc.q_lens = in.rarely(3);
  const bool cache = in.rarely(4);
  if (cache && !in.rarely(16)) desc.gradients = desc.accumulate = 0;
  desc.kv_starts = cache && desc.ragged != 0 && desc.kv_lens != 0;
  desc.kv_batch = cache && desc.ragged == 0 ? in.size(4) : 0;
  desc.max_lengths = cache && in.rarely(2);
  desc.num_splits = in.rarely(4) ? in.byte() : 0;
  return desc;
}

// The tensors that forward and backward share, and their gradients.
struct AttentionTensors {
  AttentionTensors(Input& in, const perseid_attention_desc& desc) {
    const int64_t kv_heads = desc.kv_heads == 0 ? desc.heads : desc.kv_heads;
    const int64_t value_dim = desc.value_dim == 0 ? desc.head_dim : desc.value_dim;
    const bool ragged = desc.ragged != 0;
    const auto shape = [&](int64_t length, int64_t total, int64_t heads, int64_t dim) {
      std::vector<int64_t> sizes = {ragged ? total : length, heads, dim};
      if (desc.layout == PERSEID_BHSD) std::swap(sizes[0], sizes[1]);
      if (!ragged) sizes.insert(sizes.begin(), desc.batch);
      return sizes;
    };
    const auto of_keys = [&](int64_t dim) {
      std::vector<int64_t> sizes = shape(desc.kv_len, desc.total_kv, kv_heads, dim);
      if (desc.kv_batch != 0 && !ragged) sizes[0] = desc.kv_batch;
      return sizes;
    };
    const DLDataType type = dl_type(desc.dtype);
    const DLDataType lse_type = dl_type(desc.dtype == PERSEID_F64 ? PERSEID_F64 : PERSEID_F32);
    const DLDataType bias_type = dl_type(desc.bias_dtype == 0 ? desc.dtype : desc.bias_dtype);
    const DLDataType length_type = in.rarely(2) ? kI64 : kI32;
    const std::vector<int64_t> bias_shape(desc.bias_shape, desc.bias_shape + 4);
    std::vector<int64_t> lse_shape = {desc.batch, desc.heads, desc.q_len};
    if (ragged) lse_shape = {desc.heads, desc.total_q};
    for (int gradient = 0; gradient < 2; ++gradient) {
      query[gradient] = {in, type, shape(desc.q_len, desc.total_q, desc.heads, desc.head_dim)};
      key[gradient] = {in, type, of_keys(desc.head_dim)};
      value[gradient] = {in, type, of_keys(value_dim)};
      out[gradient] = {in, type, shape(desc.q_len, desc.total_q, desc.heads, value_dim)};
      lse[gradient] = {in, lse_type, lse_shape};
      bias[gradient] = {in, bias_type, bias_shape};
    }
    visible = {in, kBool, {in.rarely(2) ? desc.batch : 1, 1, desc.q_len, desc.kv_len}};
    cu_seqlens_q = {in, length_type, {desc.batch + !in.hostile()}};
    cu_seqlens_kv = {in, length_type, {desc.batch + !in.hostile()}};
    kv_lens = {in, length_type, {desc.batch}};
    cu_seqlens_q.fill_lengths(in, desc.q_len, true);
    cu_seqlens_kv.fill_lengths(in, desc.kv_len, true);
    kv_lens.fill_lengths(in, desc.kv_len, false);
    for (FuzzTensor* each : {&q_lens, &kv_starts, &kv_index})
      *each = {in, length_type, {desc.batch}};
    q_lens.fill_lengths(in, desc.q_len, false);
    kv_starts.fill_lengths(in, desc.total_kv, false);
    kv_index.fill_lengths(in, desc.kv_batch - 1, false);
  }

  template <class Arguments>
  Arguments arguments(const perseid_attention_desc& desc, Input& in) {
    Arguments args{};
    args.struct_size = in.struct_size(sizeof args);
    args.query = query[0].get();
    args.key = key[0].get();
    args.value = value[0].get();
    args.bias = desc.bias != 0 ? bias[0].get() : nullptr;
    args.visible = desc.visible != 0 ? visible.get() : nullptr;
    args.cu_seqlens_q = desc.ragged != 0 ? cu_seqlens_q.get() : nullptr;
    args.cu_seqlens_kv = desc.ragged != 0 && desc.kv_starts == 0 ? cu_seqlens_kv.get() : nullptr;
    args.q_lens = desc.q_lens != 0 ? q_lens.get() : nullptr;
    if constexpr (requires { args.kv_starts; }) {
      args.kv_starts = desc.kv_starts != 0 ? kv_starts.get() : nullptr;
      args.kv_index = desc.kv_batch != 0 ? kv_index.get() : nullptr;
    }
    args.kv_lens = desc.kv_lens != 0 ? kv_lens.get() : nullptr;
    args.out = out[0].get();
    args.lse = lse[0].get();
    args.seed = in.byte();
    args.offset = in.rarely(16) ? UINT64_MAX : in.byte();
    return args;
  }

  FuzzTensor query[2], key[2], value[2], out[2], lse[2], bias[2];  // and the gradient
  FuzzTensor visible, cu_seqlens_q, cu_seqlens_kv, q_lens, kv_lens, kv_starts, kv_index;
};

void attention(Input& in) {
  const perseid_attention_desc desc = attention_desc(in);
  for_both(in, desc, perseid_attention_plan_create, [&](Input& more, perseid_plan_t plan) {
    AttentionTensors tensors(more, desc);
    auto forward = tensors.arguments<perseid_attention_forward_args>(desc, more);
    if (more.rarely(2)) forward.lse = nullptr;
    const uint64_t rng[2] = {more.byte(), more.byte()};
    if (more.rarely(4)) forward.rng = rng;
    execute(more, plan, PERSEID_FORWARD, [&](void* workspace, size_t bytes) {
      return perseid_attention_forward(plan, Resized(more, forward).get(), workspace, bytes,
                                       nullptr);
    });
    auto backward = tensors.arguments<perseid_attention_backward_args>(desc, more);
    backward.grad_out = tensors.out[1].get();
    backward.grad_lse = more.rarely(2) ? tensors.lse[1].get() : nullptr;
    const auto wanted = [&](uint32_t bit, FuzzTensor& gradient) {
      return ((desc.gradients & bit) != 0) != more.rarely(16) ? gradient.get() : nullptr;
    };
    backward.grad_query = wanted(PERSEID_GRAD_QUERY, tensors.query[1]);
    backward.grad_key = wanted(PERSEID_GRAD_KEY, tensors.key[1]);
    backward.grad_value = wanted(PERSEID_GRAD_VALUE, tensors.value[1]);
    backward.grad_bias = wanted(PERSEID_GRAD_BIAS, tensors.bias[1]);
    execute(more, plan, PERSEID_BACKWARD, [&](void* workspace, size_t bytes) {
      return perseid_attention_backward(plan, Resized(more, backward).get(), workspace, bytes,
                                        nullptr);
    });
  });
}

void dropout_mask(Input& in) {
  FuzzTensor mask(in, kBool, {in.below(3), in.below(3), in.below(40), in.below(70)});
  checked(
      perseid_fill_dropout_mask(context(), in.number(), in.byte(), in.byte(), mask.get(), nullptr));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  switch (in.below(4)) {
    case 0:
      softmax(in);
      break;
    case 1:
      matmul(in);
      break;
    case 2:
      attention(in);
      break;
    default:
      dropout_mask(in);
      break;
  }
  return 0;
}

// Zeros, which are a small valid problem, and random bytes, for each operation.
std::vector<std::string> perseid_fuzz::seeds() {
  constexpr int kPerOperation = 5, kBytes = 400;
  std::mt19937 random(1);
  std::vector<std::string> result;
  for (int operation = 0; operation < 4; ++operation)
    for (int i = 0; i < kPerOperation; ++i) {
      std::string bytes(1, static_cast<char>(operation));
      while (bytes.size() < kBytes) bytes += static_cast<char>(i == 0 ? 0 : random());
      result.push_back(bytes);
    }
  return result;
}
