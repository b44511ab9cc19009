// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The transport of GPUs of one host, threads or processes: each maps the memory of all, and its
// copy engines push what it has into theirs, over NVLink or PCIe. One queue, to the rank before,
// then the one before that: each gets first what it needs first, and receives from one sender at a
// time. A word is written behind each chunk.
//
// A rank writes into another's memory once that has ended the operation before (GpuRank): it has
// read what was there. Kernels that store partial sums there themselves, instead of the copy
// engines, wait for the same words; ranks of either kind go together.
//
// What a rank sums in place it reads with its multiprocessors, in the memory of the other ranks.
#include <algorithm>

#include "base/align.hpp"
#include "collective/gpu_rank.hpp"
#include "collective/transport.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {
namespace {

constexpr size_t kAlignment = 4096;
// Epochs, of which differences are compared.
constexpr uint32_t kAhead = 1 << 30;
// Chunks are signalled together up to so many bytes, which take as long as a copy's latency.
constexpr int64_t kSentTogether = 4 << 20;

size_t aligned(size_t bytes) { return align_up(bytes, kAlignment); }

// Elements [from, to) of the extent of a tensor [outer, extent, inner].
Tensor slice(Tensor tensor, int64_t from, int64_t to) {
  tensor.data = tensor.as<std::byte>() + from * tensor.stride[1] * size_of(tensor.dtype);
  tensor.shape[1] = to - from;
  return tensor;
}

// Words for signals, then data, on every GPU.
class CopyEngineGather final : public GatherTransport {
 public:
  CopyEngineGather(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group), shards_(shards), chunks_(chunks) {}
  ~CopyEngineGather() override {
    if (rank_ != nullptr) rank_->drain();
  }
  Status make(const TransportSite& site) {
    Status status = GpuRank::of(group_, site.operation, site.device.gpu, &rank_);
    const auto words = static_cast<size_t>(chunks_.words());
    data_ = aligned(words * sizeof(uint32_t));
    if (status.ok())
      status =
          GpuWindows::make(group_, site.operation, site.device.gpu, data_ + shards_.bytes() + 1,
                           words, group_.first_epoch() - 1, &windows_);
    if (!status.ok()) return status;
    // The others write only theirs meanwhile.
    own_until_ = group_.first_epoch() + kAhead;
    const std::vector<uint32_t> values(words, own_until_);
    for (int64_t i = 0, end = 0; status.ok() && i < chunks_.words(); i = end) {
      for (end = i + 1; end < chunks_.words() && is_own(end) == is_own(i);) ++end;
      if (is_own(i))
        status = cuda::copy(*site.device.gpu, windows_->words(group_.rank()) + i, values.data(),
                            static_cast<size_t>(end - i) * sizeof(uint32_t), nullptr);
    }
    return group_.exchange(site.operation, status, "", nullptr);
  }

  std::byte* gathered() const override { return windows_->data(group_.rank()) + data_; }
  const uint32_t* signals() const override { return windows_->words(group_.rank()); }
  Status start(const Operation&, uint32_t) override { return {}; }
  perseid_arrival arrival(const Operation& operation, uint32_t epoch) const override {
    return rank_->arrival(operation, signals(), epoch);
  }

  Status follow_last(const Sending& sending) override {
    const cuda::Gpu::Current current(*rank_->gpu());
    return rank_->follow_last(sending.stream);
  }
  Status send(const Operation& operation, const Sending& sending, std::span<const SentPart> parts,
              std::span<const SentPart> for_next) override {
    const cuda::Gpu::Current current(*rank_->gpu());
    const int32_t own = group_.rank();
    Status status = rank_->begin(operation, {.stream = sending.stream,
                                             .chunks = &chunks_,
                                             .signals = signals(),
                                             .epoch = sending.epoch,
                                             .record = sending.record,
                                             .watched = windows_->words(own),
                                             .watched_count = watched(sending)});
    parts_ = parts;
    for_next_ = for_next;
    if (status.ok()) status = copy_own(sending);
    if (status.ok() && sending.report != nullptr) status = watch(sending);
    return status;
  }
  Status launched(const Sending& sending) override {
    const cuda::Gpu::Current current(*rank_->gpu());
    const int32_t own = group_.rank(), size = group_.size();
    Status status = rank_->announce();
    for (int64_t group = 0; group < chunks_.groups; ++group)
      for (int32_t step = 1; status.ok() && step < size; ++step) {
        const int32_t rank = (own + size - step) % size;
        if (group == 0) status = rank_->defer_await(rank);
        const bool next = step == size - 1 && !for_next_.empty();
        if (status.ok())
          status =
              push(rank_->sending(), rank, of_group(next ? for_next_ : parts_, group), sending);
      }
    if (status.ok()) status = renew_own(sending.epoch);
    return status.ok() ? rank_->sending().flush() : status;
  }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*rank_->gpu());
    return rank_->end(sending.stream, sending.report != nullptr);
  }

 private:
  int64_t watched(const Sending& sending) const {
    return sending.report == nullptr ? 0 : chunks_.words();
  }
  // When the chunks of the others arrive, of all heads.
  Status watch(const Sending& sending) const {
    cuda::CopyQueue* queue = nullptr;
    Status status = rank_->watching(&queue);
    if (status.ok()) status = queue->follow(sending.stream);
    const ChunkTable<int64_t> table{nullptr, chunks_.count(), chunks_.pivot(group_.rank())};
    for (int64_t visit = 0; status.ok() && visit < chunks_.count(); ++visit) {
      const int64_t chunk = table.chunk_of_visit(visit);
      if (chunks_.owner(chunk) == group_.rank()) continue;
      const uint32_t* const last = signals() + chunks_.words() - chunks_.count();
      status = queue->wait_word(last + chunk, sending.epoch);
      sending.report->arrived(chunk, chunks_.owner(chunk), queue->stream());
    }
    return status;
  }
  Status push(cuda::CopyQueue& queue, int32_t rank, std::span<const SentPart> parts,
              const Sending& sending) const {
    const bool reports = sending.report != nullptr;
    Status status = reports ? queue.flush() : Status();
    int64_t begin = reports ? sending.report->point(queue.stream()) : 0, bytes = 0;
    const auto ends_chunk = [&](size_t i) {
      return i + 1 == parts.size() || !parts[i + 1].has_signal_of(parts[i]);
    };
    for (size_t i = 0, signalled = 0; status.ok() && i < parts.size(); ++i) {
      const SentPart& part = parts[i];
      Tensor to = part.to;
      to.data = windows_->data(rank) + data_ + (to.as<std::byte>() - gathered());
      if ((part.readers >> rank & 1) != 0) {
        status = queue.defer_copy(part.from, to);
        bytes += part.from.elements() * size_of(part.from.dtype);
      }
      if (!ends_chunk(i)) continue;
      if (!reports && bytes < kSentTogether && i + 1 < parts.size()) continue;
      for (; status.ok() && signalled <= i; ++signalled)
        if (ends_chunk(signalled))
          status = queue.defer_write(word(rank, parts[signalled]), sending.epoch);
      bytes = 0;
      if (!reports) continue;
      if (status.ok()) status = queue.flush();
      sending.report->add(OverlapReport::Kind::kCommunication, part.chunk, group_.rank(), begin,
                          queue.stream());
      begin = sending.report->point(queue.stream());
    }
    return status;
  }
  // Groups lie one behind the other.
  static std::span<const SentPart> of_group(std::span<const SentPart> parts, int64_t group) {
    const auto begins = [&](int64_t with) {
      return std::find_if(parts.begin(), parts.end(),
                          [&](const SentPart& part) { return part.group >= with; });
    };
    return {begins(group), begins(group + 1)};
  }
  uint32_t* word(int32_t rank, const SentPart& part) const {
    return windows_->words(rank) + part.group * chunks_.count() + part.chunk;
  }
  // Before the kernel, which finds it by the order of the stream: a copy within a GPU may need a
  // multiprocessor, and a kernel that waits for it may hold all of them.
  Status copy_own(const Sending& sending) const {
    const auto is_copied = [&](const SentPart& part) {
      return (part.readers >> group_.rank() & 1) != 0 && part.from.data != part.to.data;
    };
    if (std::none_of(parts_.begin(), parts_.end(), is_copied)) return {};
    // Behind the operation before, which may have read on another stream.
    Status status = rank_->follow_last(sending.stream);
    for (const SentPart& part : parts_)
      if (status.ok() && is_copied(part))
        status = cuda::copy_tensor(*rank_->gpu(), part.from, part.to, sending.stream);
    return status;
  }
  // The signals of the own chunks have reached epochs to come: kernels need not wait for what lies
  // before them in the stream.
  bool is_own(int64_t word) const { return chunks_.owner(word % chunks_.count()) == group_.rank(); }
  Status renew_own(uint32_t epoch) {
    if (own_until_ - epoch > kAhead / 2) return {};
    own_until_ = epoch + kAhead;
    Status status;
    for (int64_t i = 0; status.ok() && i < chunks_.words(); ++i)
      if (is_own(i))
        status = rank_->sending().defer_write(windows_->words(group_.rank()) + i, own_until_);
    return status;
  }

  Group& group_;
  const Shards shards_;
  const ShardChunks chunks_;
  GpuRank* rank_ = nullptr;
  std::unique_ptr<GpuWindows> windows_;
  size_t data_ = 0;
  uint32_t own_until_ = 0;  // the epoch in the signals of the own chunks
  // Of the execution.
  std::span<const SentPart> parts_, for_next_;
};

// On every GPU: a word for each other rank and chunk of the own shard, then the part of each rank.
class CopyEngineReduce final : public ReduceTransport {
 public:
  CopyEngineReduce(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group), gpu_(site.device.gpu), shards_(shards), chunks_(chunks) {}
  ~CopyEngineReduce() override {
    if (rank_ != nullptr) rank_->drain();
    cuda::release(*gpu_, local_);
  }
  Status make(const TransportSite& site) {
    Status status = GpuRank::of(group_, site.operation, gpu_, &rank_);
    int64_t largest = 0;
    for (int32_t rank = 0; rank < group_.size(); ++rank) {
      largest = max(largest, shards_.size(rank));
      each_ = max(each_, chunks_.first_of(rank + 1) - chunks_.first_of(rank));
    }
    const auto ranks = static_cast<size_t>(group_.size());
    const size_t words = ranks * static_cast<size_t>(each_);
    data_ = aligned(words * sizeof(uint32_t));
    part_ = aligned(
        static_cast<size_t>(shards_.outer * largest * shards_.inner * size_of(shards_.dtype)));
    const uint32_t before = group_.first_epoch() - 1;
    if (status.ok())
      status = GpuWindows::make(group_, site.operation, gpu_, data_ + ranks * part_ + 1, words,
                                before, &windows_);
    if (!status.ok()) return status;
    // Signals and partial sums of this rank's product, which it alone reaches.
    const auto count = static_cast<size_t>(chunks_.count());
    partial_ = aligned(count * sizeof(uint32_t));
    void* memory = nullptr;
    status = cuda::allocate(*gpu_, partial_ + shards_.bytes() + 1, &memory);
    local_ = static_cast<std::byte*>(memory);
    const std::vector<uint32_t> initial(count, before);
    if (status.ok())
      status = cuda::copy(*gpu_, local_, initial.data(), count * sizeof(uint32_t), nullptr);
    return group_.exchange(site.operation, status, "", nullptr);
  }

  std::byte* partial() const override { return local_ + partial_; }
  uint32_t* signals() const override { return reinterpret_cast<uint32_t*>(local_); }

  Status start(const Operation& operation, const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu_);
    Status status =
        rank_->begin(operation, {.stream = sending.stream,
                                 .epoch = sending.epoch,
                                 .parts = parts_of_work(),
                                 .local = signals(),
                                 .local_count = sending.stores ? 0 : chunks_.count(),
                                 .record = sending.record,
                                 .watched = windows_->words(group_.rank()),
                                 .watched_count = sending.report == nullptr ? 0 : arrivals()});
    // Parts arrive while the product is computed.
    if (status.ok() && sending.report != nullptr) status = watch(sending);
    return status;
  }
  // On the queue each chunk waits for the product's signal, unless the kernel stores it.
  Status send(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu_);
    const int32_t own = group_.rank(), size = group_.size();
    Status status = rank_->announce();
    cuda::CopyQueue& queue = rank_->sending();
    for (int32_t step = 1; status.ok() && step < size; ++step) {
      const int32_t rank = (own + step) % size;
      const int64_t first = chunks_.first_of(rank), last = chunks_.first_of(rank + 1);
      if (sending.stores && last - first == each_) continue;
      status = rank_->defer_await(rank);
      for (int64_t chunk = first; chunk < last && !sending.stores; ++chunk)
        if (status.ok()) status = push(rank, chunk, sending);
      // The shard may have fewer chunks than another.
      for (int64_t i = last - first; i < each_; ++i)
        if (status.ok()) status = queue.defer_write(word(rank, i), sending.epoch);
    }
    return status.ok() ? queue.flush() : status;
  }
  Status part(const Operation&, const Sending&, int32_t rank, int32_t, Tensor* part) override {
    const int32_t own = group_.rank();
    *part = rank == own ? shards_.view(partial(), shards_.begin_of(own), shards_.begin_of(own + 1))
                        : inbox(own, rank);
    return {};
  }
  perseid_arrival arrival(const Operation& operation, uint32_t epoch) const override {
    return rank_->arrival(operation, windows_->words(group_.rank()), epoch);
  }
  int64_t arrivals() const override { return (group_.size() - 1) * each_; }
  RankParts parts(const Operation& operation, const Sending& sending) override {
    const int32_t own = group_.rank(), size = group_.size();
    const Tensor first = inbox(own, 0);
    RankParts parts{.data = first.as<const float>(),
                    .of_rank = static_cast<int64_t>(part_ / sizeof(float)),
                    .batch = first.stride[0],
                    .row = first.stride[1],
                    .ranks = size,
                    .own = own};
    if (!sending.stores) return parts;
    targets_.clear();
    for (int32_t rank = 0; rank < size; ++rank)
      if (rank != own)
        targets_.push_back({.data = inbox(rank, own).as<float>(),
                            .first = static_cast<int32_t>(shards_.begin_of(rank)),
                            .last = static_cast<int32_t>(shards_.begin_of(rank + 1)),
                            .rank = rank,
                            .signals = word(rank, 0),
                            .first_chunk = static_cast<int32_t>(chunks_.first_of(rank)),
                            .signal_stride = size - 1});
    parts.targets = targets_.data();
    parts.begun = as_arrival(rank_->ended(operation));
    return parts;
  }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu_);
    return rank_->end(sending.stream, sending.report != nullptr);
  }

 private:
  // When the parts of the others arrive.
  Status watch(const Sending& sending) const {
    const int32_t own = group_.rank(), size = group_.size();
    const int64_t chunk = shards_.size(own) == 0 ? OverlapReport::kNoChunk : chunks_.first_of(own);
    cuda::CopyQueue* queue = nullptr;
    Status status = rank_->watching(&queue);
    if (status.ok()) status = queue->follow(sending.stream);
    for (int64_t i = 0; status.ok() && i < arrivals(); ++i) {
      status = queue->wait_word(windows_->words(own) + i, sending.epoch);
      if (i >= (each_ - 1) * (size - 1))  // a rank's last chunk
        sending.report->arrived(chunk, (own + 1 + static_cast<int32_t>(i % (size - 1))) % size,
                                queue->stream());
    }
    return status;
  }
  GpuRank::Parts parts_of_work() const {
    const int32_t own = group_.rank();
    return {.words = windows_->words(own),
            .count = arrivals(),
            .ranks = group_.size() - 1,
            .rank = own + 1,
            .first_chunk = chunks_.first_of(own),
            .chunks = chunks_.first_of(own + 1) - chunks_.first_of(own)};
  }
  // At `rank`: the signal of chunk i of its shard from this rank, next to those of the others.
  uint32_t* word(int32_t rank, int64_t i) const {
    const int32_t place = (group_.rank() - rank - 1 + group_.size()) % group_.size();
    return windows_->words(rank) + i * (group_.size() - 1) + place;
  }
  // At `rank`: what `source` has computed of its shard.
  Tensor inbox(int32_t rank, int32_t source) const {
    const int64_t size = shards_.size(rank);
    return {.data = windows_->data(rank) + data_ + static_cast<size_t>(source) * part_,
            .dtype = shards_.dtype,
            .rank = 3,
            .shape = {shards_.outer, size, shards_.inner},
            .stride = {size * shards_.inner, shards_.inner, 1}};
  }
  Status push(int32_t rank, int64_t chunk, const Sending& sending) const {
    cuda::CopyQueue& queue = rank_->sending();
    const auto c = static_cast<size_t>(chunk);
    const int64_t from = chunks_.begin[c], to = chunks_.begin[c + 1];
    const int64_t begin = shards_.begin_of(rank);
    Status status = queue.defer_wait(signals() + chunk, sending.epoch);
    if (status.ok() && sending.report != nullptr) status = queue.flush();
    // The chunk is computed.
    const Reported copying(sending.report, OverlapReport::Kind::kCommunication, chunk, rank,
                           queue.stream());
    if (status.ok())
      status = queue.copy(shards_.view(partial(), from, to),
                          slice(inbox(rank, group_.rank()), from - begin, to - begin));
    const int64_t i = chunk - chunks_.first_of(rank);
    return status.ok() ? queue.defer_write(word(rank, i), sending.epoch) : status;
  }

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Shards shards_;
  const ShardChunks chunks_;
  GpuRank* rank_ = nullptr;
  std::unique_ptr<GpuWindows> windows_;
  int64_t each_ = 1;            // chunks of a shard
  size_t data_ = 0, part_ = 0;  // where parts begin, and the bytes of one
  std::byte* local_ = nullptr;
  size_t partial_ = 0;
  std::vector<RankTarget> targets_;  // of the execution
};

// On every GPU: a word for each rank, then what this rank has computed of all shards. It leaves as
// a whole: a rank that has its part complete says so to the others, which read it where it lies.
//
// A partial may be written again when the others have read it. They have where they have begun a
// later operation of the plan, and a plan writes it after it has waited for their keys.
class PeerReduce final : public ReduceTransport {
 public:
  PeerReduce(const TransportSite& site, const Shards& shards, int64_t)
      : group_(site.group), operation_(site.operation), shards_(shards) {}
  ~PeerReduce() override {
    if (rank_ != nullptr) rank_->drain();
  }
  Status make(const TransportSite& site) {
    Status status = GpuRank::of(group_, site.operation, site.device.gpu, &rank_);
    const auto words = static_cast<size_t>(group_.size());
    data_ = aligned(words * sizeof(uint32_t));
    if (status.ok())
      status =
          GpuWindows::make(group_, site.operation, site.device.gpu, data_ + shards_.bytes() + 1,
                           words, group_.first_epoch() - 1, &windows_);
    return status;
  }

  std::byte* partial() const override { return windows_->data(group_.rank()) + data_; }
  uint32_t* signals() const override { return word(group_.rank()); }
  // The operation begins when the partial is complete.
  Status start(const Operation& operation, const Sending&) override {
    operation_ = operation;
    return {};
  }
  Status send(const Sending& sending) override {
    const cuda::Gpu::Current current(*rank_->gpu());
    const int32_t own = group_.rank(), size = group_.size();
    Status status = rank_->begin(
        operation_,
        {.stream = sending.stream,
         .epoch = sending.epoch,
         .parts = {.words = windows_->words(own), .count = size, .ranks = size, .chunks = 1},
         .record = sending.record,
         .operand = sending.operand});
    if (status.ok()) status = rank_->announce();
    for (int32_t step = 1; status.ok() && step < size; ++step)
      status = rank_->sending().write_word(word((own + size - step) % size), sending.epoch);
    return status;
  }
  Status part(const Operation&, const Sending&, int32_t rank, int32_t piece,
              Tensor* part) override {
    *part = shards_.view(windows_->data(rank) + data_, shards_.begin_of(piece),
                         shards_.begin_of(piece + 1));
    return {};
  }
  perseid_arrival arrival(const Operation& operation, uint32_t epoch) const override {
    return rank_->arrival(operation, windows_->words(group_.rank()), epoch);
  }
  int64_t arrivals() const override { return group_.size(); }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*rank_->gpu());
    return rank_->end(sending.stream);
  }

 private:
  // At `rank`: that of this rank.
  uint32_t* word(int32_t rank) const { return windows_->words(rank) + group_.rank(); }

  Group& group_;
  Operation operation_;
  const Shards shards_;
  GpuRank* rank_ = nullptr;
  std::unique_ptr<GpuWindows> windows_;
  size_t data_ = 0;
};

}  // namespace

const Transport kCopyEngines = {.name = "cuda:copy_engines",
                                .how = "shards are pushed",
                                .make_gather = make_transport<CopyEngineGather>,
                                .make_reduce = make_transport<CopyEngineReduce>,
                                .make_reduce_in_place = make_transport<PeerReduce>};

}  // namespace perseid::internal::collective
