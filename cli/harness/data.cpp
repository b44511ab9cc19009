// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/data.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>

namespace perseid::harness {
namespace {

constexpr std::byte kGuard{0xa7};
constexpr std::byte kUnwritten{0xff};
constexpr int64_t kGuardBytes = 256;
constexpr int64_t kAlignment = 64;

int64_t extent_of(const Shape& shape, size_t dim) { return std::max<int64_t>(shape[dim], 1); }

// Row-major over `order` (outermost first), the innermost step `step`, each dimension `pad` longer.
Shape strides_by_order(const Shape& shape, const std::vector<size_t>& order, int64_t step,
                       int64_t pad) {
  Shape strides(shape.size());
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step *= extent_of(shape, order[i]) + pad;
  }
  return strides;
}

Shape make_strides(const Shape& shape, Strides kind, uint64_t seed) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  switch (kind) {
    case Strides::kPadded:
      return strides_by_order(shape, order, 1, 3);
    case Strides::kPermuted:
      for (size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[random_bits(seed, i) % i]);
      return strides_by_order(shape, order, 1, 0);
    case Strides::kAligned: {
      // Rows of a multiple of 8 elements end 16 bytes before the next, at least.
      for (size_t i = order.size(); i > 2; --i)
        std::swap(order[i - 2], order[random_bits(seed, i) % (i - 1)]);
      return strides_by_order(shape, order, 1, 8);
    }
    case Strides::kSpread:
      return strides_by_order(shape, order, 2, 1);
    case Strides::kReversed: {
      Shape strides = strides_by_order(shape, order, 1, 0);
      for (size_t i = 0; i < strides.size(); ++i) {
        if (random_bits(seed, i) % 2 == 0) strides[i] = -strides[i];
      }
      return strides;
    }
    case Strides::kRepeated: {
      Shape strides = strides_by_order(shape, order, 1, 0);
      if (!strides.empty()) strides[random_bits(seed, 0) % strides.size()] = 0;
      return strides;
    }
    default:
      return strides_by_order(shape, order, 1, 0);
  }
}

Strides chosen(Strides kind, bool distinct, uint64_t seed) {
  if (kind == Strides::kMixed)
    kind = static_cast<Strides>(random_bits(seed, 99) % static_cast<uint64_t>(Strides::kMixed));
  return distinct && kind == Strides::kRepeated ? Strides::kPadded : kind;
}

// ---- Content ----------------------------------------------------------------------------------

const std::vector<double>& normal_table() {
  static const std::vector<double> table = [] {
    std::vector<double> values(size_t{1} << 16);
    for (size_t i = 0; i < values.size(); ++i) {
      const double u = (static_cast<double>(random_bits(7, 2 * i) >> 11) + 0.5) * 0x1p-53;
      const double v = static_cast<double>(random_bits(7, 2 * i + 1) >> 11) * 0x1p-53;
      values[i] = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
    }
    return values;
  }();
  return table;
}

// Random content of a dense tensor repeats after so many elements, an odd number, so that hardly
// two rows are the same: making more would take longer than measuring with it.
constexpr int64_t kPeriod = (int64_t{1} << 23) + 9;

void fill_random(const Tensor& tensor, Values kind, double scale, uint64_t seed) {
  if (tensor.contiguous() && tensor.elements() > 2 * kPeriod) {
    fill_random(Tensor(tensor.data(), tensor.dtype(), {kPeriod}), kind, scale, seed);
    const auto period = static_cast<size_t>(kPeriod * size_of(tensor.dtype()));
    const auto bytes = static_cast<size_t>(tensor.elements() * size_of(tensor.dtype()));
    auto* data = tensor.data<std::byte>();
    for (size_t at = period; at < bytes; at += period)
      std::memcpy(data + at, data, std::min(period, bytes - at));
    return;
  }
  const double factor = scale * (kind == Values::kLarge   ? 16
                                 : kind == Values::kSmall ? 0x1p-10
                                                          : 1);
  const DType dtype = tensor.dtype();
  const int64_t size = size_of(dtype);
  // The table in the tensor's own type: filling a large tensor is then a copy of bits.
  const std::vector<double>& normal = normal_table();
  std::vector<std::byte> encoded;
  if (tensor.elements() >= static_cast<int64_t>(normal.size())) {
    encoded.resize(normal.size() * static_cast<size_t>(size));
    for (size_t i = 0; i < normal.size(); ++i)
      store(dtype, encoded.data() + i * static_cast<size_t>(size), normal[i] * factor);
  }
  uint64_t index = 0;
  for_each_element(tensor, [&](std::byte* to) {
    if (kind == Values::kConstant) {
      store(dtype, to, 0.5 * scale);
    } else if (encoded.empty()) {
      store(dtype, to, random_normal(seed, index++) * factor);
    } else {
      const size_t pick = random_bits(seed, index++) >> 48;
      std::memcpy(to, encoded.data() + pick * static_cast<size_t>(size), static_cast<size_t>(size));
    }
  });
}

// The largest number whose products with the others of its operation stay within the range of the
// accumulation, summed or not: where a sum overflows depends on its order. Softmax sums nothing of
// its input.
double huge_value(Op op, std::string_view name, DType dtype) {
  if (dtype == f16) return 65504;
  if (is_float8(dtype)) return largest_float8(dtype);
  if (op != Op::kSoftmax || name != "input") return 0x1p30;
  return dtype == bf16 ? 0x1.fep127 : dtype == f32 ? 0x1.fffffep127 : 0x1p1000;
}

// One element in 16 becomes the largest or the smallest number, a zero of either sign or a
// subnormal one; or, in every second problem, up to three in a tensor become NaN or infinite. They
// may lie anywhere, hidden or seen. Not both at once in attention: a weight that is 0 in float32
// and 1e-300 in float64 makes NaN of infinity in the one and infinity in the other. Nor subnormal
// and infinite numbers of bf16 in matmul, where products may take the first for zeros.
void make_special(const Problem& problem, std::string_view name, const Tensor& tensor,
                  uint64_t seed) {
  const DType dtype = tensor.dtype();
  const bool attention = problem.op == Op::kAttention;
  const bool nonfinite = random_bits(problem.data_seed, 4) % 2 == 0;
  const bool flushes = nonfinite && problem.op == Op::kMatmul && dtype == bf16;
  const double least = flushes ? 0x1p-126 : smallest_step(dtype);
  const double most = attention && nonfinite ? 1 : huge_value(problem.op, name, dtype);
  const double finite[] = {most, -most, least, -least, 100 * least, -0.0, 0.0};
  const double bad[] = {std::nan(""), std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity()};
  const auto count = static_cast<uint64_t>(tensor.elements());
  const uint64_t wanted = nonfinite ? random_bits(seed, 5) % 4 : 0;
  std::map<uint64_t, double> chosen;
  for (uint64_t i = 0; i < wanted && count > 0; ++i)
    chosen[random_bits(seed, 6 + i) % count] = bad[random_bits(seed, 9 + i) % 3];
  uint64_t index = 0;
  for_each_element(tensor, [&](std::byte* to) {
    const auto found = chosen.find(index);
    const uint64_t bits = random_bits(seed + 2, index++);
    if (found != chosen.end()) return store(dtype, to, found->second);
    if (bits % 16 == 0) store(dtype, to, finite[bits / 16 % std::size(finite)]);
  });
}

// Three of four elements are visible, and in one tensor of four some rows see nothing.
void fill_mask(const Tensor& tensor, uint64_t seed) {
  const int64_t columns = tensor.ndim() > 0 ? std::max<int64_t>(tensor.size(-1), 1) : 1;
  const bool empty_rows = random_bits(seed, 1) % 4 == 0;
  const uint8_t yes = tensor.dtype() == u8 && random_bits(seed, 2) % 2 == 0 ? 0xfe : 1;
  uint64_t index = 0;
  for_each_element(tensor, [&](std::byte* to) {
    const uint64_t row = index / static_cast<uint64_t>(columns);
    const bool empty = empty_rows && random_bits(seed + 1, row) % 4 == 0;
    *to = std::byte{!empty && random_bits(seed, index + 16) % 4 != 0 ? yes : uint8_t{0}};
    ++index;
  });
}

// NaN or infinity in every key and value that no query sees, and in the rows beyond the sequences.
void poison_attention(const Problem& problem, Operands& operands) {
  const Array* visible = operands.find("visible");
  const std::vector<double> mask = visible == nullptr ? std::vector<double>() : visible->values();
  const Shape shape = in_four_dims(problem.visible);
  const int64_t group = problem.heads / std::max<int64_t>(problem.key_heads(), 1);
  const int64_t keys = problem.ragged() ? problem.rows_kv() : problem.longest_kv();
  std::vector<bool> seen(static_cast<size_t>((problem.ragged() ? 1 : problem.key_entries()) *
                                             problem.key_heads() * keys));
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Span span = span_of(problem, b);
    for (int64_t h = 0; h < problem.heads; ++h) {
      for (int64_t i = 0; i < span.q_len; ++i) {
        for (int64_t j = 0; j < span.kv_len; ++j) {
          if (!sees(problem, span, i, j)) continue;
          if (!mask.empty() && mask[static_cast<size_t>(broadcast_index(shape, b, h, i, j))] == 0)
            continue;
          const int64_t entry = problem.ragged() ? 0 : span.kv_entry;
          seen[static_cast<size_t>((entry * problem.key_heads() + h / group) * keys +
                                   span.kv_begin + j)] = true;
        }
      }
    }
  }
  for (const char* name : {"key", "value"}) {
    const Tensor& all = operands.find(name)->tensor();
    Tensor tensor = problem.layout.value == PERSEID_BSHD ? all.transposed(-3, -2) : all;
    const int64_t dim = std::max<int64_t>(tensor.size(-1), 1);
    int64_t index = 0;
    for_each_element(tensor, [&](std::byte* to) {
      const int64_t row = index++ / dim;
      if (seen[static_cast<size_t>(row)]) return;
      store(tensor.dtype(), to,
            row % 2 == 0 ? std::numeric_limits<double>::quiet_NaN()
                         : std::numeric_limits<double>::infinity());
    });
  }
}

// NaN in the rows of queries that q_lens leaves out.
void poison_queries(const Problem& problem, Operands& operands) {
  if (problem.q_lens.empty()) return;
  const int64_t rows = problem.ragged() ? problem.rows_q() : problem.longest_q();
  std::vector<bool> left_out(static_cast<size_t>((problem.ragged() ? 1 : problem.batch) * rows));
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Span span = span_of(problem, b);
    const int64_t first = (problem.ragged() ? 0 : b * rows) + span.q_begin;
    for (int64_t i = span.q_len; i < span.q_rows; ++i)
      left_out[static_cast<size_t>(first + i)] = true;
  }
  for (const char* name : {"query", "grad_out"}) {
    if (operands.find(name) == nullptr) continue;
    const Tensor& all = operands.find(name)->tensor();
    // As [batch, rows, heads, dim], or without batch.
    const Tensor tensor = problem.layout.value == PERSEID_BSHD ? all : all.transposed(-3, -2);
    const int64_t each = std::max<int64_t>(tensor.size(-1) * tensor.size(-2), 1);
    int64_t index = 0;
    for_each_element(tensor, [&](std::byte* to) {
      if (left_out[static_cast<size_t>(index++ / each)])
        store(tensor.dtype(), to, std::numeric_limits<double>::quiet_NaN());
    });
  }
}

void poison_softmax(Operands& operands) {
  const Array* visible = operands.find("visible");
  if (visible == nullptr) return;
  // The mask broadcasts: a view of the input's shape reads it with strides of 0.
  const Tensor& input = operands.find("input")->tensor();
  Shape strides;
  for (int32_t dim = 0; dim < input.ndim(); ++dim)
    strides.push_back(visible->tensor().size(dim) == 1 ? 0 : visible->tensor().stride(dim));
  const Tensor view(visible->tensor().data<const uint8_t>(), visible->tensor().dtype(),
                    input.shape(), Dims(strides));
  const std::vector<double> mask = values_of(view);
  size_t index = 0;
  for_each_element(input, [&](std::byte* to) {
    if (mask[index++] == 0) store(input.dtype(), to, std::numeric_limits<double>::quiet_NaN());
  });
}

// Powers of two, and what lies between: scales are positive, and differ from line to line.
void fill_scales(const Tensor& tensor, uint64_t seed) {
  uint64_t index = 0;
  for_each_element(tensor, [&](std::byte* to) {
    store(tensor.dtype(), to, std::exp2(random_normal(seed, index++)));
  });
}

// Row-major values of a or b (of_b), times its scales.
std::vector<double> scaled(const Problem& p, bool of_b, const std::vector<double>& scales,
                           std::vector<double> values) {
  const bool shared = of_b ? p.shared_b : p.shared_a;
  const bool depth_first = of_b != (of_b ? p.transpose_b : p.transpose_a);
  const int64_t lines = of_b ? p.n : p.m, parts = (p.k + 127) / 128, blocks = (p.n + 127) / 128;
  int64_t index = 0;
  for (double& value : values) {
    const int64_t entry = shared ? 0 : index / (lines * p.k), within = index % (lines * p.k);
    const int64_t line = depth_first ? within % lines : within / p.k;
    const int64_t part = (depth_first ? within / lines : within % p.k) / 128;
    int64_t at = 0;
    if (p.scaling.value == PERSEID_SCALE_ROW) {
      at = entry * lines + line;
    } else if (p.scaling.value == PERSEID_SCALE_BLOCK) {
      at = of_b ? (entry * parts + part) * blocks + line / 128
                : (entry * lines + line) * parts + part;
    }
    value *= scales[static_cast<size_t>(at)];
    ++index;
  }
  return values;
}

uint64_t seed_of(const Problem& problem, std::string_view name) {
  uint64_t hash = problem.data_seed;
  for (char letter : name) hash = random_bits(hash, static_cast<unsigned char>(letter));
  return hash;
}

Shape lengths_of(const Problem& problem, std::string_view name) {
  if (name == "cu_seqlens_q") return problem.cu_seqlens_q;
  if (name == "cu_seqlens_kv") return problem.cu_seqlens_kv;
  if (name == "q_lens") return problem.q_lens;
  if (name == "kv_starts") return problem.kv_starts;
  if (name == "kv_index") return problem.kv_index;
  return problem.kv_lens;
}

}  // namespace

uint64_t random_bits(uint64_t seed, uint64_t index) {
  uint64_t z =
      (seed * 0x2545f4914f6cdd1dULL) ^ (index * 0x9e3779b97f4a7c15ULL + 0x632be59bd9b4e019ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double random_normal(uint64_t seed, uint64_t index) {
  return normal_table()[random_bits(seed, index) >> 48];
}

// ---- Array ------------------------------------------------------------------------------------

Array::Array(DType dtype, const Shape& shape, Strides kind, int64_t misalign, uint64_t seed) {
  const Shape strides = make_strides(shape, kind, seed);
  const int64_t size = size_of(dtype);
  int64_t least = 0, most = 0;
  bool empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    (strides[i] < 0 ? least : most) += (extent_of(shape, i) - 1) * strides[i];
    empty = empty || shape[i] == 0;
  }
  span_ = empty ? 0 : (most - least + 1) * size;
  dense_ = span_ == elements_of(shape) * size;
  bytes_.assign(static_cast<size_t>(span_ + misalign + kAlignment + 2 * kGuardBytes), kGuard);
  memory_ = bytes_.data();
  const auto address = reinterpret_cast<uintptr_t>(memory_ + kGuardBytes);
  const int64_t align = static_cast<int64_t>((kAlignment - address % kAlignment) % kAlignment);
  front_ = kGuardBytes + align + misalign;

  Shape extents = shape;
  Shape steps = strides;
  DLTensor view{};
  view.data = bytes_.data() + front_ - least * size;
  view.ndim = static_cast<int32_t>(shape.size());
  view.shape = extents.data();
  view.strides = steps.data();
  view.device = {kDLCPU, 0};
  view.dtype = Tensor(nullptr, dtype, Dims(Shape{})).dl()->dtype;
  if (random_bits(seed, 3) % 2 == 1) {
    // The same place, said with an offset.
    view.data = static_cast<std::byte*>(view.data) - kGuardBytes / 2;
    view.byte_offset = kGuardBytes / 2;
  }
  tensor_ = Tensor(view);
  if (dense_) {
    std::fill_n(bytes_.begin() + front_, span_, kUnwritten);
    return;
  }
  for_each_element(tensor_, [&](std::byte* to) {
    std::memset(to, static_cast<int>(kUnwritten), static_cast<size_t>(size));
  });
}

bool Array::damaged() const {
  if (!sealed_.empty()) return sealed_ != bytes_;
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  if (!std::all_of(bytes_.begin(), bytes_.begin() + front_, is_guard) ||
      !std::all_of(bytes_.begin() + front_ + span_, bytes_.end(), is_guard))
    return true;
  if (dense_) return false;
  // Blank the elements in a copy: what is left must be guard.
  std::vector<std::byte> rest(bytes_);
  const std::byte* origin = bytes_.data();
  const auto size = static_cast<size_t>(size_of(tensor_.dtype()));
  for_each_element(tensor_, [&](const std::byte* element) {
    std::memset(rest.data() + (element - origin), static_cast<int>(kGuard), size);
  });
  return !std::all_of(rest.begin(), rest.end(), is_guard);
}

// ---- Operands ---------------------------------------------------------------------------------

double bytes_of(const Problem& problem) {
  const std::vector<OperandSpec> specs = operands_of(problem);
  if (specs.empty()) return std::numeric_limits<double>::infinity();
  double bytes = 0;
  for (const OperandSpec& spec : specs) {
    double product = static_cast<double>(size_of(spec.dtype));
    for (int64_t extent : spec.shape) product *= static_cast<double>(extent);
    bytes += product;
  }
  return bytes;
}

Operands::Operands(const Problem& problem, bool seal) {
  const auto values = static_cast<Values>(problem.values.value);
  for (const OperandSpec& spec : operands_of(problem)) {
    const std::string_view name = spec.name;
    if (problem.in_place && (name == "output" || name == "grad_input")) {
      arrays_[std::string(name)] = arrays_.find(name == "output" ? "input" : "grad_output")->second;
      continue;
    }
    const uint64_t seed = seed_of(problem, name);
    const bool written =
        spec.output || (problem.in_place && (name == "input" || name == "grad_output"));
    // Elements that share memory cannot differ: not for results, lengths, or single poisoned rows.
    const bool distinct = written || values == Values::kPoison || values == Values::kSpecial ||
                          spec.dtype == i32 || spec.dtype == i64;
    const Strides kind = chosen(static_cast<Strides>(problem.strides.value), distinct, seed);
    auto array = std::make_shared<Array>(spec.dtype, spec.shape, kind, problem.misalign, seed);
    arrays_[std::string(name)] = array;
    if (spec.output) continue;
    if (spec.dtype == i32 || spec.dtype == i64) {
      const Shape lengths = lengths_of(problem, name);
      assign(array->tensor(), std::vector<double>(lengths.begin(), lengths.end()));
    } else if (name == "visible") {
      fill_mask(array->tensor(), seed);
    } else if (name.starts_with("scale_")) {
      fill_scales(array->tensor(), seed);
    } else {
      fill_random(array->tensor(), values, problem.input_scale, seed);
      if (values == Values::kSpecial) make_special(problem, name, array->tensor(), seed);
    }
  }
  if (values == Values::kPoison && problem.op == Op::kAttention && lengths_fit(problem))
    poison_attention(problem, *this), poison_queries(problem, *this);
  if (values == Values::kPoison && problem.op == Op::kSoftmax) poison_softmax(*this);
  for (const OperandSpec& spec : operands_of(problem)) {
    if (seal && !spec.output && !problem.in_place) find(spec.name)->seal();
  }
}

Operands::Operands(const Problem& problem, const Operands& from) {
  for (const OperandSpec& spec : operands_of(problem)) {
    auto array = std::make_shared<Array>(spec.dtype, spec.shape);
    if (!spec.output) assign(array->tensor(), from.find(spec.name)->values());
    arrays_[spec.name] = array;
  }
}

void Operands::take_scales(const Problem& problem, const Operands& from) {
  for (const bool of_b : {false, true}) {
    const Array* scales = from.find(of_b ? "scale_b" : "scale_a");
    if (scales == nullptr) continue;
    const Tensor& operand = find(of_b ? "b" : "a")->tensor();
    assign(operand, scaled(problem, of_b, scales->values(), values_of(operand)));
  }
  if (const auto scale = from.arrays_.find("scale_result"); scale != from.arrays_.end())
    arrays_.insert(*scale);
}

Operands::Operands(const Problem& problem,
                   const std::map<std::string, std::vector<double>>& values) {
  for (const OperandSpec& spec : operands_of(problem)) {
    auto array = std::make_shared<Array>(spec.dtype, spec.shape);
    const auto given = values.find(spec.name);
    if (given != values.end()) assign(array->tensor(), given->second);
    arrays_[spec.name] = array;
  }
}

Array* Operands::find(std::string_view name) {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? nullptr : found->second.get();
}

const Array* Operands::find(std::string_view name) const {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? nullptr : found->second.get();
}

std::string Operands::damaged() const {
  std::string names;
  for (const auto& [name, array] : arrays_) {
    if (array->damaged()) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace perseid::harness
