// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The producer of attention forward (forward.hpp): one warp finds the Q tiles and issues the TMA
// loads of the Q, K, V and bias pipelines. It alone waits for chunks of key and value that arrive
// while the kernel runs (cuda/device/chunk_waits.hpp): before it loads a K tile it polls the
// signals of all chunks that hold keys of it which some query of the Q tile sees. Where groups
// of heads, or of sequences of a ragged batch, arrive one after another, these are the signals of
// the tile's group.
#pragma once

#include "cuda/device/attention/nonfinite.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/sm90/attention/forward_shared.hpp"
#include "cuda/device/sm90/attention/map_coordinates.hpp"

namespace perseid::internal::cuda {

// The producer's waits for key and value, where these arrive in chunks.
template <bool kAsync>
struct KeyWaits {
  __device__ __forceinline__ explicit KeyWaits(const AsyncArguments&) {}
};
template <>
struct KeyWaits<true> {
  ArrivalWaits<> waits_;
  int32_t group_ = 0;                   // of the Q tile's key head
  ChunkRange<int32_t> known_ = {0, 0};  // rows [first, last) of the group that have arrived
  uint64_t arrived_ = 0;                // C.rank_pieces: the ranks whose rows have arrived
  // The order of the Q tile's unmasked tiles, and the rows that its queries see.
  CyclicTiles<int32_t> order_;
  ChunkRange<int32_t> seen_ = {0, 0};
  int visited_ = 0, before_ = 0;  // KV tiles of the last K load, and of the one before it

  __device__ __forceinline__ explicit KeyWaits(const AsyncArguments& async) : waits_(async, 0) {
    waits_.start();
  }
};

template <AttentionForwardConfig C>
class ForwardProducer : KeyWaits<C.async> {
  using Shared = ForwardShared<C>;

 public:
  __device__ __forceinline__ ForwardProducer(const AttentionForwardArguments& arguments,
                                             const ForwardShared<C>& shared)
      : KeyWaits<C.async>(arguments.async),
        arguments_(arguments),
        shared_(shared),
        numbers_(arguments),
        finder_(arguments) {
    if constexpr (C.async && C.rank_pieces) this->arrived_ = no_ranks(arguments);
  }

  // Prefetches K and V of the first iterations to the L2 cache, while the kernels before may still
  // run: the L2 cache is coherent with what they write later.
  __device__ __forceinline__ void prefetch_first_tiles() {
    const AttentionTile tile = finder_.find(numbers_.first());
    for (int n = tile.last; n >= max(tile.first, tile.last - C.stages + 1); --n) {
      prefetch<C.key_chunks()>(arguments_.key, tile, n);
      prefetch<C.value_chunks()>(arguments_.value, tile, n);
    }
  }
  // One warp runs both passes: all lanes wait, one lane issues the loads. (A single thread for the
  // first pass, while its warp waits for the second, takes 1 to 2 % longer.)
  __device__ __forceinline__ void run() {
    load_tiles<false>(tile_of(numbers_.first(), 0));
    if (is_leader() && draws()) numbers_.close();
  }
  // Loads the listed tiles again and clears the non-finite elements of their values.
  __device__ __forceinline__ void run_second_pass() {
    // Consumers release the empty tile that ends the first pass when the list is complete.
    const PipelineState<C.q_stages> last{queries_.count - 1};
    ptx::mbarrier_wait(shared_.queries().empty(last.stage()), last.parity());
    const int32_t number = shared_.nonfinite_list();
    if (number != arguments_.tiles) load_tiles<true>(number);
  }

 private:
  static __device__ __forceinline__ bool is_leader() { return threadIdx.x == 0; }
  static __device__ __forceinline__ int32_t rank() {
    return C.cluster > 1 ? static_cast<int32_t>(ptx::block_of_cluster()) : 0;
  }
  // The block that draws for its cluster.
  static __device__ __forceinline__ bool draws() { return rank() == 0; }
  // The block's tile of the one that its cluster has drawn, its tile number `count`. Under a causal
  // mask the tile of the first rank is longer by a KV tile, so the ranks rotate: a block that is
  // ahead waits for the other one until the next tile only.
  static __device__ __forceinline__ int32_t tile_of(int32_t drawn, int count) {
    return drawn * C.cluster + (C.cluster > 1 ? (rank() + count) % C.cluster : 0);
  }

  // The Q tiles of a pass; the second pass has the listed ones. V of a tile's last iteration is
  // loaded after Q and the first K of the next tile, which consumers need earlier.
  template <bool kSecondPass>
  __device__ __forceinline__ void load_tiles(int32_t number) {
    AttentionTile before{};
    bool value_pending = false;
    while (true) {
      if constexpr (kSecondPass) finder_.restart();
      AttentionTile tile = finder_.find(number);
      tile.listed = kSecondPass;
      enter(tile);
      // With one query stage the producer waits for the tile before: issue other loads first.
      // Pieces of K are released before V.
      if (C.in_pieces() && tile.number >= 0) load_key<kSecondPass>(tile, tile.last);
      if (C.q_stages == 1 && value_pending)
        load_value<kSecondPass>(before, value_tile(before.first, false));
      if (C.q_stages == 1 && !C.in_pieces() && tile.number >= 0)
        load_key<kSecondPass>(tile, tile.last);
      announce(tile);
      if (C.q_stages == 1) value_pending = false;
      if (tile.number < 0) break;
      // The tile before does not wait for keys of this one.
      if constexpr (C.async)
        if (value_pending && !is_known(tile, tile.last)) {
          load_value<kSecondPass>(before, value_tile(before.first, false));
          value_pending = false;
        }
      if (C.q_stages > 1) load_key<kSecondPass>(tile, tile.last);
      if (value_pending) load_value<kSecondPass>(before, value_tile(before.first, true));
      // Fetch the next tile during the last loads, no earlier: a block that draws early, and then
      // computes a long tile, delays the short tile that it has drawn.
      uint32_t ticket = 0;
      for (int n = tile.last - 1; n >= tile.first; --n) {
        if (n == tile.first) ticket = draw<kSecondPass>();
        load_key<kSecondPass>(tile, n);
        load_value<kSecondPass>(tile, value_tile(n + 1, true));
        if (!kSecondPass && is_leader() && draws()) numbers_.open();
      }
      if (tile.last == tile.first) ticket = draw<kSecondPass>();
      number = kSecondPass ? arguments_.nonfinite_next[number] : next_tile(ticket);
      before = tile;
      value_pending = true;
    }
    if (value_pending) load_value<kSecondPass>(before, value_tile(before.first, false));
  }
  template <bool kSecondPass>
  __device__ __forceinline__ uint32_t draw() {
    return !kSecondPass && is_leader() && draws() ? numbers_.draw() : 0;
  }
  // The block that has drawn sends the ticket to the other one. A tile has at least two KV tiles,
  // and that block is at most two loads of keys ahead: two tickets are enough.
  __device__ __forceinline__ int32_t next_tile(uint32_t ticket) const {
    const int count = queries_.count;
    ticket = __shfl_sync(0xffffffffu, ticket, 0);
    if constexpr (C.cluster > 1) {
      static_assert(C.cluster == 2);
      const uint32_t slot = shared_.ticket(count - 1), barrier = shared_.ticket_barrier(count - 1);
      if (draws()) {
        if (is_leader())
          ptx::send(ptx::address_in_block(slot, 1), ptx::address_in_block(barrier, 1),
                    __uint_as_float(ticket), 0.0f);
      } else {
        if (is_leader()) ptx::mbarrier_arrive_expect_tx(barrier, 8);
        ptx::mbarrier_wait_cluster(barrier, static_cast<uint32_t>((count - 1) / 2) & 1);
        ticket = *reinterpret_cast<const volatile uint32_t*>(shared_.pointer(slot));
      }
    }
    return tile_of(numbers_.number_of(ticket), count);
  }
  __device__ __forceinline__ void announce(const AttentionTile& tile) {
    const auto queries = shared_.queries();
    const PipelineState<C.q_stages> state = queries_;
    queries.producer_acquire(state);
    queries_.advance();
    if (!is_leader()) return;
    static_cast<AttentionTile&>(shared_.tile(state.count)) = tile;
    if (tile.number < 0) {
      queries.producer_commit(state);
      return;
    }
    shared_.tile(state.count).lse =
        C.split || arguments_.lse == nullptr || first_column<C>(tile) > 0
            ? nullptr
            : lse_of<C>(arguments_, tile, int64_t{tile.head} << arguments_.pack_gqa, tile.query);
    queries.producer_expect_bytes(state, C.consumers * Shared::Query::kBytes);
    for (int c = 0; c < C.consumers; ++c) {
      // A consumer whose rows are all before the first query may have any rows.
      const int32_t query = max(tile.query + (64 * c >> arguments_.pack_gqa), 0);
      typename Shared::LoadedQuery{shared_.query(state.stage(), c).base}.load(
          arguments_.query, queries.full(state.stage()),
          {0, 0, tile.q_begin + query, tile.head, entry_of<C.lengths>(arguments_, tile.batch)});
    }
  }
  // What of a Q tile does not change from one KV tile to the next.
  __device__ __forceinline__ void enter(const AttentionTile& tile) {
    if constexpr (C.async) {
      const int32_t group = C.rank_pieces ? tile.kv_begin / arguments_.rows_of_arrival
                                          : (tile.batch * arguments_.kv_heads + tile.kv_head) /
                                                arguments_.heads_of_arrival;
      if (group != this->group_) {
        this->known_ = {0, 0};
        if constexpr (C.rank_pieces) this->arrived_ = no_ranks(arguments_);
      }
      this->group_ = group;
      const auto seen = TileKeys<C>::of(tile, arguments_.pack_gqa);
      this->seen_ = {tile.kv_begin + seen.begin, tile.kv_begin + seen.end};
      this->order_ = C.split ? CyclicTiles<int32_t>{}
                             : CyclicTiles<int32_t>::from(tile.unmasked_first, tile.unmasked_end,
                                                          pivot_of<C>(arguments_, tile), C.keys);
    }
  }
  // The KV tile that is visited as tile n of the Q tile that was entered.
  __device__ __forceinline__ int visited_tile(int n) const {
    if (n < this->order_.begin || n >= this->order_.end) return n;
    return this->order_.at(this->order_.end - 1 - n);
  }
  // Rows of a KV tile that queries see.
  __device__ __forceinline__ ChunkRange<int32_t> rows_seen(const AttentionTile& tile,
                                                           int visited) const {
    return {max(tile.kv_begin + visited * C.keys, this->seen_.first),
            min(tile.kv_begin + (visited + 1) * C.keys, this->seen_.last)};
  }
  __device__ __forceinline__ bool are_known(const AttentionTile& tile,
                                            ChunkRange<int32_t> rows) const {
    if (rows.first >= rows.last) return true;
    if constexpr (C.rank_pieces) return missing_owners(tile, rows) == 0;
    return this->known_.first <= rows.first && rows.last <= this->known_.last;
  }
  __device__ __forceinline__ bool is_known(const AttentionTile& tile, int n) const {
    return are_known(tile, rows_seen(tile, visited_tile(n)));
  }
  // C.rank_pieces: a chunk has a rank's rows of every sequence of a group, instead of adjoining
  // ones. The ranks that rows, at least one, are missing of.
  __device__ __forceinline__ uint64_t missing_owners(const AttentionTile& tile,
                                                     ChunkRange<int32_t> rows) const {
    if (this->arrived_ == ~uint64_t{0}) return 0;
    return owners_of_keys(arguments_, keys_of_piece(arguments_, tile), rows.first - tile.kv_begin,
                          rows.last - tile.kv_begin) &
           ~this->arrived_;
  }
  __device__ __forceinline__ void await_owners(uint64_t missing) {
    for (; missing != 0; missing &= missing - 1) {
      const int rank = __ffsll(static_cast<long long>(missing)) - 1;
      if (!this->waits_.await_chunk_of(arguments_.arrivals[this->group_], rank)) {
        this->arrived_ = ~uint64_t{0};
        return;
      }
      this->arrived_ |= uint64_t{1} << rank;
    }
  }
  // The KV tile whose V is loaded next: that of tile n in the order of visits. `after_key`: since
  // its K another one was loaded.
  __device__ __forceinline__ int value_tile(int n, bool after_key) const {
    if constexpr (C.async) return after_key ? this->before_ : this->visited_;
    return n;
  }
  template <bool kSecondPass>
  __device__ __forceinline__ void load_key(const AttentionTile& tile, int n) {
    if constexpr (C.async) {
      n = visited_tile(n);
      this->before_ = this->visited_;
      this->visited_ = n;
      const ChunkRange<int32_t> rows = rows_seen(tile, n);
      if (!are_known(tile, rows)) {
        if constexpr (C.rank_pieces)
          await_owners(missing_owners(tile, rows));
        else
          this->known_ = this->waits_.await_rows(arguments_.arrivals[this->group_], rows.first,
                                                 rows.last, this->known_);
      }
    }
    const auto keys = shared_.keys();
    for (int piece = 0; piece < C.key_pieces(); ++piece) {
      const PipelinePiece<C.stages, C.key_pieces()> state{keys_, piece};
      keys.producer_acquire(state);
      if (!is_leader()) continue;
      constexpr int kNumbers = C.number_slots() > 0 ? C.number_bytes() : 0;
      keys.producer_expect_bytes(state, Shared::Key::kBytes + kNumbers);
      load<kSecondPass>(arguments_.key, shared_.key(state.stage()), keys.full(state.stage()), tile,
                        n * C.keys, piece * kChunk);
      if constexpr (kNumbers > 0) load_numbers(tile, n, keys_.count, keys.full(state.stage()));
    }
    keys_.advance();
    if constexpr (C.bias_stages > 0) load_bias(tile, n);
  }
  // Those behind the end of the sequence are of others, or zeros.
  __device__ __forceinline__ void load_numbers(const AttentionTile& tile, int n, int count,
                                               uint32_t barrier) const {
    const int32_t first = first_number<C>(arguments_, tile) + n * C.keys;
    ptx::tma_load(shared_.numbers(count), arguments_.key_numbers, barrier,
                  {first / 2 * 4, 0, 0, 0, 0});
  }
  // In the iteration of its K tile.
  __device__ __forceinline__ void load_bias(const AttentionTile& tile, int n) {
    const auto biases = shared_.biases();
    const auto state = biases_;
    biases.producer_acquire(state);
    biases_.advance();
    if (!is_leader()) return;
    biases.producer_expect_bytes(state, C.consumers * Shared::Bias::kBytes);
    for (int c = 0; c < C.consumers; ++c)
      shared_.bias(state.stage(), c)
          .load(arguments_.bias_map, biases.full(state.stage()),
                {n * C.keys * C.bias_size() / 2, 0, tile.query + 64 * c,
                 tile.head * arguments_.bias_heads, tile.batch * arguments_.bias_batches});
  }
  // After its K tile, so that its chunks have arrived.
  template <bool kSecondPass>
  __device__ __forceinline__ void load_value(const AttentionTile& tile, int n) {
    const auto values = shared_.values();
    for (int piece = 0; piece < C.value_pieces(); ++piece) {
      const PipelinePiece<C.stages, C.value_pieces()> state{values_, piece};
      values.producer_acquire(state);
      const auto value = shared_.value(state.stage());
      const uint32_t full = kSecondPass ? shared_.value_loaded() : values.full(state.stage());
      if (is_leader()) {
        ptx::mbarrier_arrive_expect_tx(full, Shared::Value::kBytes);
        load<kSecondPass>(arguments_.value, value, full, tile,
                          n * C.keys + piece * Shared::Value::kRows, first_column<C>(tile));
      }
      if constexpr (kSecondPass) {
        ptx::mbarrier_wait(full, loaded_parity_);
        loaded_parity_ ^= 1;
        clear_nonfinite(value.base);
        if (is_leader()) values.producer_commit(state);
      }
    }
    values_.advance();
  }
  // The whole warp; the proxy fence makes its writes visible to the tensor cores.
  __device__ __forceinline__ void clear_nonfinite(uint32_t value) const {
    auto* pairs = reinterpret_cast<uint4*>(shared_.pointer(value));
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Shared::Value::kBytes / 16; i += 32)
      if (!is_finite<C.dtype>(pairs[i])) pairs[i] = finite_or_zero<C.dtype>(pairs[i]);
    ptx::fence_proxy_async();
    __syncwarp();
  }
  // Blocks of a cluster load a chunk of the columns each, but in a second pass, where each has
  // tiles of its own.
  template <bool kSecondPass, class Tile>
  __device__ __forceinline__ void load(const TensorMap& map, Tile to, uint32_t barrier,
                                       const AttentionTile& tile, int key, int column) {
    const int32_t row = tile.kv_begin + key;
    const int32_t entry = key_entry_of<C.lengths>(arguments_, tile.batch);
    if constexpr (C.cluster > 1 && !kSecondPass) {
      static_assert(Tile::kChunks == C.cluster);
      ptx::tma_load_multicast(to.chunk(rank()), map, barrier,
                              {column + rank() * kChunk, 0, row, tile.kv_head, entry},
                              (1 << C.cluster) - 1);
      return;
    }
    // Without groups each key is read once; query heads of a group that are not packed read the
    // same keys, each in a tile of its own.
    if (C.split && arguments_.group == 1)
      to.template load<true>(map, barrier, {column, 0, row, tile.kv_head, entry});
    else
      to.load(map, barrier, {column, 0, row, tile.kv_head, entry});
  }
  template <int kChunks>
  __device__ __forceinline__ void prefetch(const TensorMap& map, const AttentionTile& tile, int n) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      ptx::tma_prefetch(map, {chunk * kChunk, 0, n * C.keys, tile.kv_head, tile.batch});
  }

  const AttentionForwardArguments& arguments_;
  const ForwardShared<C>& shared_;
  DynamicTileScheduler<AttentionForwardArguments, C.cluster> numbers_;
  TileFinder<C> finder_;
  PipelineState<C.q_stages> queries_;
  PipelineState<C.stages> keys_, values_;
  PipelineState<max(C.bias_stages, 1)> biases_;
  uint32_t loaded_parity_ = 0;  // of value_loaded()
};

}  // namespace perseid::internal::cuda
