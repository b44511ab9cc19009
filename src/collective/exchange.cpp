// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "collective/gpu_exchange.hpp"
#include "cuda/runtime/memory.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::collective {
namespace {

constexpr size_t kHalf = kInboxBytes / 2;
constexpr size_t kLongestSentence = 4096;

// What a rank calls an operation with, as the others see it.
struct Call {
  enum Kind : uint64_t { kBarrier = 1, kAllGather, kReduceScatter, kAllReduce };
  uint64_t kind = kBarrier;
  uint64_t dtype = 0, reduction = 0;
  uint64_t input = 0, output = 0;  // elements
  uint64_t rows = 0;               // of dimension 0 of the input
  uint64_t on_gpu = 0;             // where the tensors are: 1, on the rank's GPU
  uint64_t status = PERSEID_OK;    // of its arguments; the inbox has the sentence
};
static_assert(sizeof(Call) <= sizeof(RankWords::call));

const char* name_of(uint64_t kind) {
  constexpr const char* kNames[] = {"?", "barrier", "all-gather", "reduce-scatter", "all-reduce"};
  return kNames[kind <= Call::kAllReduce ? kind : 0];
}

std::string text_of(const Call& call) {
  if (call.kind == Call::kBarrier) return name_of(call.kind);
  return concatenate(name_of(call.kind), call.reduction == 1 ? " (average)" : "", " of ",
                     call.input, " elements of ", internal::name_of(static_cast<DType>(call.dtype)),
                     call.on_gpu == 1 ? " on a GPU" : "", " in ", call.rows, " rows, output of ",
                     call.output);
}

// Bytes of an inbox.
struct Part {
  size_t begin, bytes;
};

// One operation through the inboxes.
class Exchange {
 public:
  Exchange(Group& group, const Operation& operation, const Call& call)
      : group_(group), operation_(operation), call_(call) {}

  // Announces the call, or why this rank's arguments are refused, and waits for those of all ranks.
  // Where one is refused, all return the same.
  Status meet(const Status& arguments = {}) {
    const uint32_t epoch = group_.next_epoch();
    RankWords& own = group_.words(group_.rank());
    // The others have read the call before this one.
    if (Status status = wait_done(epoch - 1); !status.ok()) return status;
    Call mine = call_;
    mine.status = static_cast<uint64_t>(arguments.code());
    if (!arguments.ok()) tell(arguments.sentence(), half(group_.rank(), epoch));
    std::memcpy(own.call, &mine, sizeof mine);
    const auto* call = reinterpret_cast<const std::byte*>(own.call);
    group_.for_each_other([&](int32_t rank) { group_.put(rank, call, sizeof mine); });
    group_.signal(&own.ready, epoch);
    Status refused;
    for (int32_t rank = 0; rank < group_.size(); ++rank) {
      RankWords& words = group_.words(rank);
      if (Status status = group_.wait(operation_, rank, &words.ready, epoch); !status.ok())
        return status;
      Call& call_of_rank = calls_[static_cast<size_t>(rank)];
      std::memcpy(&call_of_rank, words.call, sizeof(Call));
      if (refused.ok() && call_of_rank.status != PERSEID_OK)
        refused = Status::error(static_cast<perseid_status>(call_of_rank.status), "rank ", rank,
                                ": ", reinterpret_cast<const char*>(half(rank, epoch)));
    }
    group_.signal(&own.done, epoch);
    return refused.ok() ? compare() : refused;
  }
  // One call for each rank.
  std::span<const Call> calls() const {
    return std::span(calls_).first(static_cast<size_t>(group_.size()));
  }

  // One piece: write(half of the own inbox), then read(rank, half of its inbox) for every rank,
  // the own one first. part_for(rank): the part of the own half that the rank reads.
  template <class Write, class PartFor, class Read>
  Status piece(const Write& write, const PartFor& part_for, const Read& read) {
    const uint32_t epoch = group_.next_epoch();
    const int32_t size = group_.size();
    RankWords& own = group_.words(group_.rank());
    // The others have read what was in this half.
    if (Status status = wait_done(epoch - 2); !status.ok()) return status;
    std::byte* const mine = half(group_.rank(), epoch);
    write(mine);
    group_.for_each_other([&](int32_t rank) {
      const Part part = part_for(rank);
      group_.put(rank, mine + part.begin, part.bytes);
    });
    group_.signal(&own.ready, epoch);
    for (int32_t step = 0; step < size; ++step) {
      const int32_t rank = (group_.rank() + step) % size;
      Status status = group_.wait(operation_, rank, &group_.words(rank).ready, epoch);
      if (!status.ok()) return status;
      read(rank, half(rank, epoch));
    }
    group_.signal(&own.done, epoch);
    return {};
  }

 private:
  std::byte* half(int32_t rank, uint32_t epoch) const {
    return group_.inbox(rank) + (epoch & 1) * kHalf;
  }

  // The others have read what was there.
  void tell(const std::string& sentence, std::byte* inbox) const {
    const size_t length = std::min(sentence.size(), kLongestSentence);
    std::memcpy(inbox, sentence.data(), length);
    inbox[length] = std::byte{0};
    group_.for_each_other([&](int32_t rank) { group_.put(rank, inbox, length + 1); });
  }

  Status wait_done(uint32_t epoch) {
    for (int32_t rank = 0; rank < group_.size(); ++rank) {
      Status status = group_.wait(operation_, rank, &group_.words(rank).done, epoch);
      if (!status.ok()) return status;
    }
    return {};
  }

  Status compare() const {
    uint64_t gathered = 0;
    for (const Call& call : calls()) gathered += call.input;
    const Call& first = calls_[0];
    // What is called at all comes before what does not fit.
    for (const bool sizes : {false, true})
      for (size_t rank = 0; rank < calls().size(); ++rank) {
        const Call& call = calls_[rank];
        const bool fits = call.kind == Call::kAllGather
                              ? call.output == gathered
                              : call.input == first.input && call.rows == first.rows;
        const bool same = call.kind == first.kind && call.dtype == first.dtype &&
                          call.reduction == first.reduction && call.on_gpu == first.on_gpu;
        if (sizes ? fits : same) continue;
        return Status::error(PERSEID_INVALID_ARGUMENT, "rank ", rank, " calls ", text_of(call),
                             ", rank 0 ", text_of(first),
                             sizes && call.kind == Call::kAllGather
                                 ? concatenate(", all inputs have ", gathered)
                                 : std::string(),
                             "; call the same operation with fitting shapes on all ranks");
      }
    return {};
  }

  Group& group_;
  const Operation& operation_;
  const Call call_;
  std::array<Call, kMostRanks> calls_;
};

struct Arguments {
  Tensor input, output;
  int32_t gpu = -1;  // that they are on; -1: memory of the host
};

bool is_row_major(const Tensor& tensor) {
  if (op::is_empty(tensor)) return true;
  int64_t natural = 1;
  for (int32_t d = tensor.rank - 1; d >= 0; --d) {
    if (tensor.shape[d] > 1 && tensor.stride[d] != natural) return false;
    natural *= tensor.shape[d];
  }
  return true;
}

Status read_arguments(const char* name, Reduction reduction, const DLTensor* input,
                      const DLTensor* output, const op::InPlace& allowed, Arguments* arguments) {
  const bool on_gpu = input != nullptr && input->device.device_type == kDLCUDA;
  op::ArgumentReader reader(name, on_gpu ? input->device : DLDevice{kDLCPU, 0});
  if (on_gpu) arguments->gpu = input->device.device_id;
  reader.require(reduction == Reduction::kSum || reduction == Reduction::kAverage, "reduction is ",
                 static_cast<int32_t>(reduction),
                 ", expected PERSEID_SUM (0) or PERSEID_AVERAGE (1)");
  const auto read = [&](op::Access access, const char* argument, const DLTensor* tensor,
                        op::DTypes dtypes) -> Tensor {
    constexpr const char* kNames[] = {"dimension 0", "dimension 1", "dimension 2", "dimension 3",
                                      "dimension 4", "dimension 5", "dimension 6", "dimension 7"};
    if (!reader.require(tensor != nullptr, argument, " is NULL; pass a tensor") ||
        !reader.require(0 <= tensor->ndim && tensor->ndim <= kMaxDims, argument, " has ",
                        tensor->ndim, " dimensions, expected at most ", kMaxDims))
      return {};
    std::array<op::Extent, kMaxDims> extents;
    for (size_t d = 0; d < extents.size(); ++d) extents[d] = {kNames[d], op::kAnySize};
    const Tensor view = reader.read(access, argument, tensor, dtypes,
                                    std::span(extents).first(static_cast<size_t>(tensor->ndim)));
    reader.require(!reader.ok() || is_row_major(view), argument,
                   " does not lie row-major without gaps; copy it into a tensor that does");
    return view;
  };
  DType dtype = DType::kF32;
  if (input != nullptr && input->dtype.lanes == 1) {
    if (input->dtype.code == kDLBfloat) dtype = DType::kBF16;
    if (input->dtype.code == kDLFloat && input->dtype.bits == 16) dtype = DType::kF16;
    if (input->dtype.code == kDLFloat && input->dtype.bits == 64) dtype = DType::kF64;
  }
  arguments->input = read(op::Access::kRead, "input", input, dtype);
  if (reader.ok()) arguments->output = read(op::Access::kWrite, "output", output, dtype);
  return reader.finish(allowed);
}

Call call_of(Call::Kind kind, Reduction reduction, const Arguments& arguments) {
  const auto number = [](int64_t value) { return static_cast<uint64_t>(value); };
  const Tensor& input = arguments.input;
  return {kind,
          static_cast<uint64_t>(input.dtype),
          static_cast<uint64_t>(reduction),
          number(input.elements()),
          number(arguments.output.elements()),
          number(input.rank == 0 ? 1 : input.shape[0]),
          arguments.gpu >= 0 ? 1u : 0u};
}

// The rank's part in calls on GPUs of one host, where this is one.
Status on_gpu_of(Group& group, const Operation& operation, const Arguments& arguments,
                 GpuExchange** exchange) {
  *exchange = nullptr;
  return arguments.gpu < 0 || !group.shares_memory()
             ? Status()
             : GpuExchange::of(group, operation, arguments.gpu, exchange);
}

// Tensors of a GPU in memory of its host, where ranks on several hosts exchange them.
class OnHost {
 public:
  // Moves the arguments there, if they are of such a call.
  Status take(const Group& group, Arguments* arguments) {
    if (arguments->gpu < 0 || group.shares_memory()) return {};
    output_ = arguments->output;
    Status status = cuda::Gpu::open(arguments->gpu, &gpu_);
    Tensor* tensor = &arguments->input;
    for (std::vector<std::byte>* bytes : {&in_, &out_}) {
      bytes->resize(bytes_of(*tensor));
      if (status.ok() && tensor == &arguments->input && !bytes->empty())
        status = cuda::copy(*gpu_, bytes->data(), tensor->data, bytes->size(), nullptr);
      tensor->data = bytes->data();
      tensor = &arguments->output;
    }
    return status;
  }
  // Moves the output back.
  Status give(Status status) const {
    if (!status.ok() || out_.empty()) return status;
    return cuda::copy(*gpu_, output_.data, out_.data(), out_.size(), nullptr);
  }

 private:
  static size_t bytes_of(const Tensor& tensor) {
    return static_cast<size_t>(tensor.elements() * size_of(tensor.dtype));
  }

  std::shared_ptr<cuda::Gpu> gpu_;
  Tensor output_;
  std::vector<std::byte> in_, out_;
};

// Where the operation has the tensors: on the GPU that this rank has used, or moved to the host.
Status find_place(Group& group, const Operation& operation, Arguments* arguments, OnHost* on_host) {
  Status status;
  if (arguments->gpu >= 0 && group.shares_memory())
    status = GpuExchange::check(group, operation, arguments->gpu);
  return status.ok() ? on_host->take(group, arguments) : status;
}

using Parts = std::array<const void*, kMostRanks>;
// Where what belongs to each rank begins, and the end of all.
using Begins = std::array<size_t, kMostRanks + 1>;

// Reduces the same run of every rank's part into `out`.
void reduce_parts(const Group& group, const Parts& parts, const Tensor& input, Reduction reduction,
                  void* out, int64_t count) {
  reduce({.parts = parts.data(),
          .ranks = group.size(),
          .dtype = input.dtype,
          .reduction = reduction,
          .bias = nullptr,
          .bias_dtype = DType::kNone,
          .bias_stride = 0,
          .out = out,
          .out_dtype = input.dtype,
          .out_stride = 1,
          .count = count});
}

}  // namespace

Status barrier(Group& group, uint64_t deadline_ns) {
  const Operation operation("barrier", deadline_ns);
  const Turn turn(group, operation);
  if (!turn.status().ok()) return turn.status();
  return Exchange(group, operation, {}).meet();
}

Status meet_within(Group& group, const Operation& operation) {
  return Exchange(group, operation, {}).meet();
}

Status all_gather(Group& group, const DLTensor* input, const DLTensor* output,
                  uint64_t deadline_ns) {
  const Operation operation("all-gather", deadline_ns);
  Arguments arguments;
  Status status = read_arguments(operation.name, Reduction::kSum, input, output, {}, &arguments);
  const Turn turn(group, operation);
  if (!turn.status().ok()) return turn.status();
  OnHost on_host;
  if (status.ok()) status = find_place(group, operation, &arguments, &on_host);
  Exchange exchange(group, operation, call_of(Call::kAllGather, Reduction::kSum, arguments));
  if (status = exchange.meet(status); !status.ok()) return status;
  GpuExchange* on_gpu = nullptr;
  if (status = on_gpu_of(group, operation, arguments, &on_gpu); !status.ok()) return status;

  const auto element = static_cast<size_t>(on_gpu != nullptr ? 1 : size_of(arguments.input.dtype));
  Begins begin{};  // bytes; on GPUs elements
  size_t ranks = 0;
  size_t longest = 0;
  for (const Call& call : exchange.calls()) {
    begin[ranks + 1] = begin[ranks] + call.input * element;
    ++ranks;
    longest = std::max(longest, call.input * element);
  }
  if (on_gpu != nullptr)
    return on_gpu->all_gather(operation, begin, arguments.input, arguments.output);
  for (size_t from = 0; status.ok() && from < longest; from += kHalf) {
    const auto bytes = [&](int32_t rank) {
      const auto r = static_cast<size_t>(rank);
      const size_t all = begin[r + 1] - begin[r];
      return all > from ? std::min(all - from, kHalf) : 0;
    };
    status = exchange.piece(
        [&](std::byte* half) {
          if (const size_t own = bytes(group.rank()); own > 0)
            std::memcpy(half, arguments.input.as<std::byte>() + from, own);
        },
        [&](int32_t) {
          return Part{0, bytes(group.rank())};
        },
        [&](int32_t rank, const std::byte* half) {
          if (const size_t count = bytes(rank); count > 0)
            std::memcpy(arguments.output.as<std::byte>() + begin[static_cast<size_t>(rank)] + from,
                        half, count);
        });
  }
  return on_host.give(std::move(status));
}

Status reduce_scatter(Group& group, Reduction reduction, const DLTensor* input,
                      const DLTensor* output, uint64_t deadline_ns) {
  const Operation operation("reduce-scatter", deadline_ns);
  Arguments arguments;
  Status status = read_arguments(operation.name, reduction, input, output, {}, &arguments);
  const Call call = call_of(Call::kReduceScatter, reduction, arguments);
  const auto ranks = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
  const size_t row = call.rows == 0 ? 0 : call.input / call.rows;
  Begins begin{};  // elements
  for (size_t rank = 0; rank <= ranks; ++rank) begin[rank] = rank * call.rows / ranks * row;
  const size_t own = begin[me + 1] - begin[me];
  op::Check check(operation.name);
  check.require(!status.ok() || call.output == own, "output has ", call.output,
                " elements, expected ", own, ": rows ", row == 0 ? 0 : begin[me] / row, " to ",
                row == 0 ? 0 : begin[me + 1] / row, " of the input");
  if (!check.ok()) status = check.result();
  const Turn turn(group, operation);
  if (!turn.status().ok()) return turn.status();
  OnHost on_host;
  if (status.ok()) status = find_place(group, operation, &arguments, &on_host);
  Exchange exchange(group, operation, call);
  if (status = exchange.meet(status); !status.ok()) return status;
  GpuExchange* on_gpu = nullptr;
  if (status = on_gpu_of(group, operation, arguments, &on_gpu); !status.ok()) return status;
  if (on_gpu != nullptr)
    return on_gpu->reduce_scatter(operation, begin, reduction, arguments.input, arguments.output);

  size_t longest = 0;
  for (size_t rank = 0; rank < ranks; ++rank)
    longest = std::max(longest, begin[rank + 1] - begin[rank]);
  // A piece has a part of each slice, in whole cache lines.
  const auto element = static_cast<size_t>(size_of(arguments.input.dtype));
  const size_t part = kHalf / ranks / 64 * 64 / element;
  Parts parts{};
  for (size_t from = 0; status.ok() && from < longest; from += part) {
    const auto count = [&](size_t slice) {
      const size_t all = begin[slice + 1] - begin[slice];
      return all > from ? std::min(all - from, part) : 0;
    };
    status = exchange.piece(
        [&](std::byte* half) {
          for (size_t slice = 0; slice < ranks; ++slice)
            if (count(slice) > 0)
              std::memcpy(half + slice * part * element,
                          arguments.input.as<std::byte>() + (begin[slice] + from) * element,
                          count(slice) * element);
        },
        [&](int32_t rank) {
          const auto slice = static_cast<size_t>(rank);
          return Part{slice * part * element, count(slice) * element};
        },
        [&](int32_t rank, const std::byte* half) {
          parts[static_cast<size_t>(rank)] = half + me * part * element;
          // The last rank that comes completes the sums.
          if ((static_cast<size_t>(rank) + 1) % ranks == me)
            reduce_parts(group, parts, arguments.input, reduction,
                         arguments.output.as<std::byte>() + from * element,
                         static_cast<int64_t>(count(me)));
        });
  }
  return on_host.give(std::move(status));
}

Status all_reduce(Group& group, Reduction reduction, const DLTensor* input, const DLTensor* output,
                  uint64_t deadline_ns) {
  const Operation operation("all-reduce", deadline_ns);
  Arguments arguments;
  Status status = read_arguments(operation.name, reduction, input, output,
                                 {.output = "output", .input = "input"}, &arguments);
  const Call call = call_of(Call::kAllReduce, reduction, arguments);
  op::Check check(operation.name);
  check.require(!status.ok() || call.output == call.input, "output has ", call.output,
                " elements, expected ", call.input, ", as the input has");
  if (!check.ok()) status = check.result();
  const Turn turn(group, operation);
  if (!turn.status().ok()) return turn.status();
  OnHost on_host;
  if (status.ok()) status = find_place(group, operation, &arguments, &on_host);
  Exchange exchange(group, operation, call);
  if (status = exchange.meet(status); !status.ok()) return status;
  GpuExchange* on_gpu = nullptr;
  if (status = on_gpu_of(group, operation, arguments, &on_gpu); !status.ok()) return status;
  if (on_gpu != nullptr)
    return on_gpu->all_reduce(operation, reduction, arguments.input, arguments.output);

  const auto ranks = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
  const auto element = static_cast<size_t>(size_of(arguments.input.dtype));
  const size_t most = kHalf / element;
  Parts parts{};
  for (size_t from = 0; status.ok() && from < call.input; from += most) {
    const size_t count = std::min(most, call.input - from);
    const auto begin = [&](size_t rank) { return rank * count / ranks; };
    status = exchange.piece(
        [&](std::byte* half) {
          std::memcpy(half, arguments.input.as<std::byte>() + from * element, count * element);
        },
        [&](int32_t rank) {
          const auto r = static_cast<size_t>(rank);
          return Part{begin(r) * element, (begin(r + 1) - begin(r)) * element};
        },
        [&](int32_t rank, const std::byte* half) {
          parts[static_cast<size_t>(rank)] = half + begin(me) * element;
        });
    // The other half takes the sums. Nobody writes this one before all have theirs.
    if (status.ok())
      status = exchange.piece(
          [&](std::byte* half) {
            reduce_parts(group, parts, arguments.input, reduction, half,
                         static_cast<int64_t>(begin(me + 1) - begin(me)));
          },
          [&](int32_t) {
            return Part{0, (begin(me + 1) - begin(me)) * element};
          },
          [&](int32_t rank, const std::byte* half) {
            const auto r = static_cast<size_t>(rank);
            if (const size_t size = begin(r + 1) - begin(r); size > 0)
              std::memcpy(arguments.output.as<std::byte>() + (from + begin(r)) * element, half,
                          size * element);
          });
  }
  return on_host.give(std::move(status));
}

}  // namespace perseid::internal::collective
