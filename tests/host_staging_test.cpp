// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What goes through memory of the hosts between GPUs of several hosts, with a fake driver, whose
// folder must be in LD_LIBRARY_PATH, as ctest sets it. gpu_collective_test has real GPUs.
#include "host_ranks.hpp"

namespace {

using namespace host_ranks;

class HostStaging : public HostRanks {
 protected:
  void enter(int32_t rank) override {
    HostRanks::enter(rank);
    setenv("PERSEID_TRANSPORT", "sockets", 1);
  }
};

TEST_F(HostStaging, BringsShardsAndPartsToTheirRanks) {
  for (const int32_t size : {2, 3, 5}) {
    start(size, [&](int32_t rank) {
      const Member member(rank, size);
      bool right = &transport_of(*member.device, *member.group) == &kHostStaging;
      for (const int64_t outer : {1, 3})
        right = right && gathers(member, outer) && gathers_scales(member, outer) &&
                reduces(member, outer);
      return right;
    });
    EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(size), 0));
  }
}

// As context-parallel attention has it: of every row 2 heads of keys in one place and a row of
// values in another, rows or heads first.
constexpr int64_t kRowsOfRank = 6, kHeads = 2, kDim = 3;

struct GatheredRows {
  Tensor key, value;  // [row, head, element]

  GatheredRows(std::byte* data, int64_t rows, bool rows_first)
      : key{.data = data,
            .dtype = DType::kF32,
            .rank = 3,
            .shape = {rows, kHeads, kDim},
            .stride = {rows_first ? kHeads * kDim : kDim, rows_first ? kDim : rows * kDim, 1}},
        value(key) {
    value.data = key.as<float>() + key.elements();
    value.shape[1] = 1;
    value.stride[0] = kDim;
    value.stride[1] = rows_first ? kDim : rows * kDim;
  }
  static int64_t elements(int64_t rows) { return rows * (kHeads + 1) * kDim; }
};

Tensor rows_from(Tensor tensor, int64_t row, int64_t count) {
  tensor.data = tensor.as<float>() + row * tensor.stride[0];
  tensor.shape[0] = count;
  return tensor;
}

// visit(element, its number in all rows)
template <class Visit>
void visit_rows(const Tensor& tensor, int64_t first_row, int64_t number, const Visit& visit) {
  for (int64_t row = 0; row < tensor.shape[0]; ++row)
    for (int64_t head = 0; head < tensor.shape[1]; ++head)
      for (int64_t d = 0; d < tensor.shape[2]; ++d)
        visit(tensor.as<uint32_t>()[row * tensor.stride[0] + head * tensor.stride[1] + d],
              number + ((first_row + row) * tensor.shape[1] + head) * kDim + d);
}

Shards shards_of_rows(int32_t ranks, bool one_piece) {
  Shards shards{.dtype = DType::kF32, .outer = 1, .inner = (kHeads + 1) * kDim, .begin = {0}};
  for (int32_t rank = 0; rank < ranks && !one_piece; ++rank)
    shards.begin.push_back(kRowsOfRank * (rank + 1));
  if (one_piece) shards.begin.push_back(kRowsOfRank * ranks);
  return shards;
}

// Chunk c is not read by rank c % size.
bool gathers_parts(const Member& member, bool rows_first) {
  Group& group = *member.group;
  const int32_t own = group.rank(), size = group.size();
  const Operation operation("context-attention", kDeadline);
  const Shards shards = shards_of_rows(size, false);
  const ShardChunks chunks(shards, size, 2);
  const int64_t rows = shards.extent();
  std::unique_ptr<GatherTransport> transport;
  const TransportSite site{group, operation, *member.device};
  if (!kHostStaging.make_gather(site, shards, chunks, &transport).ok()) return false;
  const GatheredRows gathered(transport->gathered(), rows, rows_first);
  std::vector<float> memory(static_cast<size_t>(GatheredRows::elements(rows)));
  const GatheredRows given(reinterpret_cast<std::byte*>(memory.data()), rows, rows_first);
  const auto readers = [&](int64_t chunk) { return ~(uint64_t{1} << chunk % size); };
  const auto for_each_part = [&](const auto& body) {  // body(chunk, part, its number, first row)
    for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
      const auto c = static_cast<size_t>(chunk);
      const int64_t from = chunks.begin[c], count = chunks.begin[c + 1] - from;
      body(chunk, from, rows_from(given.key, from, count), rows_from(gathered.key, from, count), 0);
      body(chunk, from, rows_from(given.value, from, count), rows_from(gathered.value, from, count),
           gathered.key.elements());
    }
  };
  bool right = true;
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    const Turn turn(group, operation);
    std::vector<SentPart> parts, expected;
    for_each_part([&](int64_t chunk, int64_t from, const Tensor& mine, const Tensor& there,
                      int64_t number) {
      const bool is_own = chunks.owner(chunk) == own;
      visit_rows(mine, from, number,
                 [&](uint32_t& value, int64_t element) { value = value_of(own, element, epoch); });
      visit_rows(there, from, number, [](uint32_t& value, int64_t) { value = 0; });
      if (is_own)
        parts.push_back({chunk, mine, there, readers(chunk)});
      else if ((readers(chunk) >> own & 1) != 0)
        expected.push_back({chunk, {}, there, readers(chunk)});
    });
    const Sending sending{epoch, nullptr, nullptr};
    transport->expect(expected);
    right = right && transport->start(operation, epoch).ok() &&
            transport->send(operation, sending, parts).ok();
    for_each_part(
        [&](int64_t chunk, int64_t from, const Tensor&, const Tensor& there, int64_t number) {
          const int32_t owner = chunks.owner(chunk);
          const bool arrives = owner == own || (readers(chunk) >> own & 1) != 0;
          visit_rows(there, from, number, [&](uint32_t value, int64_t element) {
            right = right && value == (arrives ? value_of(owner, element, epoch) : 0);
          });
        });
    for (int64_t chunk = 0; right && chunk < chunks.count(); ++chunk)
      right = transport->signals()[chunk] == epoch;
    right = transport->finish(sending).ok() && right;
  }
  return right;
}

// Rank r sums the rows of two pieces, r and 2 size - 1 - r, of which it gets those of all others.
bool gives_pieces(const Member& member, bool rows_first) {
  Group& group = *member.group;
  const int32_t own = group.rank(), size = group.size();
  const Operation operation("context-attention backward", kDeadline);
  const Shards shards = shards_of_rows(size, true);
  const int64_t rows = shards.extent(), piece = kRowsOfRank / 2;
  std::unique_ptr<ReduceTransport> transport;
  const TransportSite site{group, operation, *member.device};
  if (!kHostStaging.make_reduce_in_place(site, shards, kRowsOfRank, &transport).ok()) return false;
  const GatheredRows partial(transport->partial(), rows, rows_first);
  const auto for_each_piece = [&](int32_t rank, const auto& body) {  // body(rows, from, number, at)
    size_t at = 0;
    for (const int64_t from : {rank * piece, (2 * size - 1 - rank) * piece})
      for (const bool of_value : {false, true}) {
        const Tensor all = rows_from(of_value ? partial.value : partial.key, from, piece);
        body(all, from, of_value ? partial.key.elements() : 0, at);
        at += static_cast<size_t>(all.elements()) * sizeof(float);
      }
  };
  bool right = true;
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    const Turn turn(group, operation);
    const Sending sending{epoch, nullptr, nullptr};
    right = right && transport->start(operation, sending).ok();
    for (const auto& [tensor, number] :
         {std::pair{&partial.key, int64_t{0}}, {&partial.value, partial.key.elements()}})
      visit_rows(*tensor, 0, number,
                 [&](uint32_t& value, int64_t element) { value = value_of(own, element, epoch); });
    group.for_each_other([&](int32_t rank) {
      for_each_piece(rank, [&](const Tensor& all, int64_t, int64_t, size_t at) {
        right = right && transport->give(rank, all, at).ok();
      });
    });
    right = right && transport->send(sending).ok();
    for (int32_t rank = 0; right && rank < size; ++rank) {
      Tensor part;
      right = transport->part(operation, sending, rank, 0, &part).ok();
      for_each_piece(own, [&](const Tensor& all, int64_t from, int64_t number, size_t at) {
        Tensor given = all;
        if (rank == own) {
          right = right && part.data == transport->partial();
        } else {  // without gaps, in the order of memory
          given.data = part.as<std::byte>() + at;
          given.stride[0] = rows_first ? all.shape[1] * kDim : kDim;
          given.stride[1] = rows_first ? kDim : piece * kDim;
        }
        visit_rows(given, from, number, [&](uint32_t value, int64_t element) {
          right = right && value == value_of(rank, element, epoch);
        });
      });
    }
    right = transport->finish(sending).ok() && right;
  }
  return right;
}

TEST_F(HostStaging, BringsPartsThatLieAnywhere) {
  for (const int32_t size : {2, 3, 5}) {
    start(size, [&](int32_t rank) {
      const Member member(rank, size);
      bool right = true;
      for (const bool rows_first : {true, false})
        right = right && gathers_parts(member, rows_first) && gives_pieces(member, rows_first);
      return right;
    });
    EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(size), 0));
  }
}

// Rank 1 dies, or does nothing, while rank 0 waits for its shard.
TEST_F(HostStaging, NamesARankThatSendsNothing) {
  for (const bool dies : {false, true}) {
    start(2, [&](int32_t rank) {
      const Member member(rank, 2);
      Group& group = *member.group;
      const Operation making("plan", kDeadline);
      const Shards shards = shards_of(2, 1);
      const ShardChunks chunks(shards, 2, 2);
      std::unique_ptr<GatherTransport> transport;
      if (!kHostStaging.make_gather({group, making, *member.device}, shards, chunks, &transport)
               .ok())
        return false;
      if (rank == 1) {
        std::this_thread::sleep_for(dies ? 200ms : 1500ms);
        if (dies) kill(getpid(), SIGKILL);
        return true;
      }
      const Operation operation("all-gather", 500'000'000);
      std::vector<SentPart> parts;
      const Tensor own = shards.view(transport->gathered(), 0, shards.size(0));
      cut_shard(shards, chunks, 0, transport->gathered(), own, &parts);
      const auto start = Clock::now();
      const Turn turn(group, operation);
      perseid_wait_record record{};
      const Status status = transport->send(operation, {1, nullptr, &record}, parts);
      fprintf(stderr, "%s\n", status.sentence().c_str());
      return status.code() == (dies ? PERSEID_PEER_LOST : PERSEID_TIMEOUT) && group.failed() == 1 &&
             record.status == status.code() && record.rank == 1 && record.chunk >= 2 &&
             Clock::now() - start < 1300ms;
    });
    EXPECT_EQ(join(), (std::vector<int>{0, dies ? -SIGKILL : 0})) << dies;
  }
}

}  // namespace
