// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Keys and values that NCCL brings to context-parallel attention, and gradients that it brings
// back, with the fake NCCL and driver: what arrives where and when, on ranks that share a host and
// on others, and how executions end.
#include "cuda/runtime/signals.hpp"
#include "nccl_ranks.hpp"

namespace {

using namespace host_ranks;

// As the plan of a rank has them: zigzag pieces, of which each rank reads some.
class KeysAndGradients {
 public:
  struct Shape {
    int64_t heads = 4, groups = 2, both = 3;
    int64_t each = 2, rows = 10;  // chunks and rows of a piece
    bool rows_first = true;       // of gradients
  };
  KeysAndGradients(const Member& member, const Shape& shape)
      : group_(*member.group), gpu_(member.device->gpu), shape_(shape), shards_{shards(shape)} {
    const Operation operation("context-attention", kDeadline);
    const TransportSite site{group_, operation, *member.device};
    const Transport& transport = transport_of(*member.device, group_);
    chunks_ = std::make_unique<ShardChunks>(shards_, size(), shape.each);
    chunks_->groups = shape.groups;
    Status status = transport.make_gather(site, shards_, *chunks_, &keys_);
    Shards one = shards_;
    one.begin = {0, shards_.extent()};
    if (status.ok())
      status = transport.make_reduce_in_place(site, one, 2 * shape.rows, &gradients_);
    if (!status.ok()) throw std::runtime_error(status.sentence());
    visit(parts_of_all(), [](uint32_t& value, uint32_t) { value = kNothing; });
    // What others send comes after that.
    status = group_.exchange(operation, {}, "", nullptr);
    if (!status.ok()) throw std::runtime_error(status.sentence());
  }

  // One execution, whose kernel begins when all keys are there, as backward's. `right` is what
  // kernels have seen.
  Status execute(const Operation& operation, uint32_t epoch, std::atomic<bool>* right,
                 bool fused = false) {
    const Turn turn(group_, operation);
    if (!turn.status().ok()) return turn.status();
    const Sending sending{epoch, nullptr, nullptr};
    Status status = keys_->follow_last(sending);
    // Each rank computes its own rows of keys.
    own_ = parts_of(own());
    launch(nullptr, [this, epoch, parts = own_] {
      visit(parts, [=, this](uint32_t& value, uint32_t number) {
        value = value_of(own(), number, epoch);
      });
    });
    arriving_.clear();
    group_.for_each_other([&](int32_t rank) {
      for (const SentPart& part : parts_of(rank))
        if ((part.readers >> own() & 1) != 0) arriving_.push_back(part);
    });
    keys_->expect(arriving_);
    if (status.ok()) status = keys_->send(operation, sending, own_);
    const perseid_arrival keys = keys_->arrival(operation, epoch);
    if (status.ok() && !fused) status = keys_->launched(sending);
    launch(nullptr, [=, this] { attend(keys, epoch, right); });
    if (fused)
      if (const Status launched = keys_->launched(sending); status.ok()) status = launched;
    const Status finished = keys_->finish(sending);
    if (status.ok()) status = finished;
    if (!status.ok()) return status;
    status = gradients_->start(operation, sending);
    group_.for_each_other([&](int32_t rank) {
      for_each_piece(rank, [&](const SentPart& piece, size_t at) {
        if (status.ok() && (piece.readers >> own() & 1) != 0)
          status = gradients_->give(rank, piece.from, at);
      });
      for_each_piece(own(), [&](const SentPart& piece, size_t at) {
        if ((piece.readers >> rank & 1) != 0) gradients_->take(rank, piece.from, at);
      });
    });
    if (status.ok()) status = cuda::set_signal(*gpu_, gradients_->signals(), epoch, nullptr);
    if (status.ok()) status = gradients_->send(sending);
    const perseid_arrival parts = gradients_->arrival(operation, epoch);
    std::vector<Tensor> given(static_cast<size_t>(size()));
    for (int32_t rank = 0; status.ok() && rank < size(); ++rank)
      status = gradients_->part(operation, sending, rank, 0, &given[static_cast<size_t>(rank)]);
    launch(nullptr, [=, this] { sum(parts, given, epoch, right); });
    const Status read = gradients_->finish(sending);
    return status.ok() ? read : status;
  }

 private:
  static constexpr uint32_t kNothing = 0xffffffff;

  int32_t size() const { return group_.size(); }
  int32_t own() const { return group_.rank(); }
  Shards shards(const Shape& shape) const {
    Shards all{.dtype = DType::kF32, .inner = shape.heads * shape.both, .begin = {0}};
    for (int32_t piece = 0; piece < 2 * group_.size(); ++piece)
      all.begin.push_back(all.begin.back() + shape.rows);
    return all;
  }
  // Its own rank does in any case.
  uint64_t readers(int64_t chunk) const {
    return (uint64_t{0b1011010} >> chunk % 3 & ~uint64_t{0} >> (64 - size())) |
           uint64_t{1} << chunks_->owner(chunk);
  }
  template <class Body>
  void for_each_chunk(int32_t rank, const Body& body) const {
    for (const int32_t piece : {rank, 2 * size() - 1 - rank})
      for (int64_t chunk = chunks_->first_of(piece); chunk < chunks_->first_of(piece + 1); ++chunk)
        body(chunk, chunks_->begin[static_cast<size_t>(chunk)],
             chunks_->begin[static_cast<size_t>(chunk + 1)]);
  }
  // Of the gathered rows, [head, row, element].
  std::vector<SentPart> parts_of(int32_t rank) const {
    std::vector<SentPart> parts;
    const int64_t each = shape_.heads / shape_.groups, rows = shards_.extent();
    for (int64_t group = 0; group < shape_.groups; ++group)
      for_each_chunk(rank, [&](int64_t chunk, int64_t from, int64_t to) {
        const Tensor part{
            .data = keys_->gathered() + (group * each * rows + from) * shape_.both * sizeof(float),
            .dtype = DType::kF32,
            .rank = 3,
            .shape = {each, to - from, shape_.both},
            .stride = {rows * shape_.both, shape_.both, 1}};
        parts.push_back({chunk, part, part, readers(chunk), group});
      });
    return parts;
  }
  std::vector<SentPart> parts_of_all() const {
    std::vector<SentPart> all;
    for (int32_t rank = 0; rank < size(); ++rank)
      for (const SentPart& part : parts_of(rank)) all.push_back(part);
    return all;
  }
  // Calls body(piece, at): gradients of the rows of a rank, [row, head, element].
  template <class Body>
  void for_each_piece(int32_t rank, const Body& body) const {
    const int64_t rows = shards_.extent(), heads = shape_.heads, both = shape_.both;
    size_t at = 0;
    for_each_chunk(rank, [&](int64_t chunk, int64_t from, int64_t to) {
      const int64_t row = shape_.rows_first ? heads * both : both;
      const Tensor piece{.data = gradients_->partial() + from * row * sizeof(float),
                         .dtype = DType::kF32,
                         .rank = 3,
                         .shape = {to - from, heads, both},
                         .stride = {row, shape_.rows_first ? both : rows * both, 1}};
      body(SentPart{chunk, piece, piece, readers(chunk)}, at);
      at += static_cast<size_t>(piece.elements()) * sizeof(float);
    });
  }
  template <class Visit>
  static void visit(const std::vector<SentPart>& parts, const Visit& visit) {
    for (const SentPart& part : parts) visit_tensor(part.to, part.chunk, part.group, visit);
  }
  template <class Visit>
  static void visit_tensor(const Tensor& tensor, int64_t chunk, int64_t group, const Visit& visit) {
    auto number = static_cast<uint32_t>(1000 * (10 * chunk + group));
    for (int64_t i = 0; i < tensor.shape[0]; ++i)
      for (int64_t j = 0; j < tensor.shape[1]; ++j)
        for (int64_t k = 0; k < tensor.shape[2]; ++k)
          visit(tensor.as<uint32_t>()[i * tensor.stride[0] + j * tensor.stride[1] + k], number++);
  }
  // Waits for one chunk after the other, finds what was sent and nothing else, and computes
  // gradients of all keys.
  void attend(const perseid_arrival& keys, uint32_t epoch, std::atomic<bool>* right) {
    for (int64_t word = 0; word < chunks_->words(); ++word) await(keys, word);
    if (cpu::load_acquire(keys.abort) != 0) return;
    for (int32_t rank = 0; rank < size(); ++rank)
      for (const SentPart& part : parts_of(rank)) {
        const bool reads = (part.readers >> own() & 1) != 0;
        visit({part}, [&](uint32_t value, uint32_t number) {
          if (value != (reads ? value_of(rank, number, epoch) : kNothing)) *right = false;
        });
      }
    usleep(1000);
    for (int32_t rank = 0; rank < size(); ++rank)
      for_each_piece(rank, [&](const SentPart& piece, size_t) {
        visit_tensor(piece.from, piece.chunk, 0, [&](uint32_t& value, uint32_t number) {
          value = value_of(own(), number, epoch);
        });
      });
  }
  void sum(const perseid_arrival& parts, const std::vector<Tensor>& given, uint32_t epoch,
           std::atomic<bool>* right) {
    for (int64_t word = 0; word < gradients_->arrivals(); ++word) await(parts, word);
    if (cpu::load_acquire(parts.abort) != 0) return;
    usleep(1000);
    for (int32_t rank = 0; rank < size(); ++rank)
      for_each_piece(own(), [&](const SentPart& piece, size_t at) {
        if ((piece.readers >> rank & 1) == 0) return;
        std::byte* const data = given[static_cast<size_t>(rank)].as<std::byte>();
        const Tensor rows = rank == own() ? piece.from : without_gaps(piece.from, data + at);
        visit_tensor(rows, piece.chunk, 0, [&](uint32_t value, uint32_t number) {
          if (value != value_of(rank, number, epoch)) *right = false;
        });
      });
  }

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Shape shape_;
  const Shards shards_;
  std::unique_ptr<ShardChunks> chunks_;
  std::unique_ptr<GatherTransport> keys_;
  std::unique_ptr<ReduceTransport> gradients_;
  std::vector<SentPart> own_, arriving_;
};

class NcclAttention : public NcclRanks {
 protected:
  // hosts_[r]: that of rank r.
  void enter(int32_t rank) override {
    NcclRanks::enter(rank);
    if (!hosts_.empty())
      setenv("PERSEID_HOSTID", std::string(1, hosts_[static_cast<size_t>(rank)]).c_str(), 1);
  }
  // Several executions in flight.
  static bool executes(const Member& member, const KeysAndGradients::Shape& shape, bool fused) {
    KeysAndGradients work(member, shape);
    std::atomic<bool> right{true};
    Status status;
    for (uint32_t epoch = 1; status.ok() && epoch <= 4; ++epoch)
      status = work.execute(Operation("attention", kDeadline), epoch, &right, fused);
    if (!status.ok()) fprintf(stderr, "%s\n", status.sentence().c_str());
    const bool complete = ended(member);
    if (!right) fprintf(stderr, "rank %d: wrong\n", member.group->rank());
    return status.ok() && complete && right;
  }

  std::string hosts_;
};

TEST_F(NcclAttention, BringsKeysToReadersAndGradientsBack) {
  for (const char* const hosts : {"ab", "abc", "aabb", "abab", "aaab"}) {
    hosts_ = hosts;
    const auto size = static_cast<int32_t>(hosts_.size());
    start(size, [&](int32_t rank) {
      const Member member(rank, size);
      bool right = agree(member).ok() && carries(member);
      for (const bool fused : {false, true})
        right = right && executes(member, {.rows_first = true}, fused) &&
                executes(member, {.groups = 4, .rows_first = false}, fused);
      return right;
    });
    EXPECT_EQ(join(), std::vector<int>(hosts_.size(), 0)) << hosts;
  }
}

// An exchange has the runs of so many heads in parts.
TEST_F(NcclAttention, BringsKeysOfManyHeads) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    return agree(member).ok() &&
           executes(member, {.heads = 300, .groups = 1, .each = 1, .rows = 1, .rows_first = false},
                    true);
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Kernels are there before the data is.
TEST_F(NcclAttention, WaitsForWhatIsSlow) {
  hosts_ = "aab";
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    if (!agree(member).ok()) return false;
    setenv("FAKE_NCCL", "slow", 1);
    return executes(member, {.groups = 1, .each = 1}, true);
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// Rank 1 sends no keys, or has gone.
TEST_F(NcclAttention, EndsWithoutARank) {
  for (const bool dies : {false, true}) {
    start(3, [&](int32_t rank) {
      const Member member(rank, 3);
      if (!agree(member).ok()) return false;
      auto work = std::make_unique<KeysAndGradients>(member, KeysAndGradients::Shape());
      std::atomic<bool> right{true};
      const auto start = Clock::now();
      const Operation operation("attention", dies ? kDeadline : 500'000'000);
      Status status = work->execute(operation, 1, &right);
      if (rank == 1 && dies) raise(SIGKILL);
      if (rank == 1) {
        while (member.group->failed() < 0 && Clock::now() - start < 2s) usleep(1000);
        status = member.group->failure(operation);
      }
      for (uint32_t epoch = 2; rank != 1 && status.ok() && epoch <= 4; ++epoch)
        status = work->execute(operation, epoch, &right);
      status = outcome_of(member, std::move(status));
      const bool expected = status.code() == (dies ? PERSEID_PEER_LOST : PERSEID_TIMEOUT) &&
                            member.group->failed() == 1;
      if (!expected) fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      const bool soon = Clock::now() - start < 2s;
      work.reset();
      return expected && soon && right && (!dies || goes_on(member, 2));
    });
    EXPECT_EQ(join(), (std::vector<int>{0, dies ? -SIGKILL : 0, 0})) << dies;
  }
}

}  // namespace
