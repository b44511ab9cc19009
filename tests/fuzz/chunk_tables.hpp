// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Chunk tables and signals of matmul for the fuzz target of descriptors, and what must hold of
// them.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "fuzz_input.hpp"
#include "perseid/perseid.h"

namespace perseid_fuzz {

// A chunk table with exactly the memory that its count says: mostly right, else with a gap, an
// overlap, boundaries in another order, or a count that no table has.
class FuzzChunks {
 public:
  // One of the two dimensions that may be cut.
  FuzzChunks(Input& in, int64_t first_size, perseid_chunk_dim first, int64_t second_size,
             perseid_chunk_dim second)
      : dims_{first, second}, sizes_{first_size, second_size} {
    const int which = in.rarely(2);
    table_.struct_size = in.struct_size(sizeof table_);
    table_.dim = dims_[which];
    if (which == 0 && in.rarely(2)) table_.dim = PERSEID_CHUNK_DEFAULT;
    if (in.rarely(32)) table_.dim = in.byte();
    const int64_t size = sizes_[which];
    table_.count = 1 + in.below(std::clamp<int64_t>(size, 1, 9));
    words_ = static_cast<size_t>(table_.count);
    begin_.reset(new int64_t[words_ + 1]);
    for (size_t c = 0; c <= words_; ++c)
      begin_[c] = c == words_ ? size : size / table_.count * static_cast<int64_t>(c);
    table_.begin = begin_.get();
    if (in.rarely(4)) spoil(in, size);
    resized_ = std::make_unique<Resized<perseid_async_operand>>(in, table_);
  }
  const perseid_async_operand* get() const { return resized_->get(); }
  // Whether a library of this header can have taken it.
  bool right() const {
    if (table_.struct_size != sizeof table_) return true;
    const int which = table_.dim == 0 || table_.dim == dims_[0] ? 0 : 1;
    if (table_.dim != 0 && table_.dim != dims_[which]) return false;
    if (table_.begin == nullptr || table_.count != static_cast<int64_t>(words_)) return false;
    for (size_t c = 0; c < words_; ++c)
      if (begin_[c] >= begin_[c + 1]) return false;
    return begin_[0] == 0 && begin_[words_] == sizes_[which];
  }
  // Entries of the table, and words of its signals.
  size_t words() const { return words_; }
  bool of_depth() const { return table_.dim == PERSEID_CHUNK_K; }

 private:
  void spoil(Input& in, int64_t size) {
    int64_t& any = begin_[in.byte() % (words_ + 1)];
    switch (in.below(6)) {
      case 0:
        any = in.size(40);
        break;
      case 1:
        std::swap(any, begin_[in.byte() % (words_ + 1)]);
        break;
      case 2:
        begin_[0] = 1;
        break;
      case 3:
        begin_[words_] = size < 0 ? 0 : size - 1;
        break;
      case 4:
        table_.count = in.pick<int64_t>({0, -1, PERSEID_MAX_CHUNKS + 1, int64_t{1} << 31,
                                         int64_t{1} << 32, std::numeric_limits<int64_t>::min(),
                                         std::numeric_limits<int64_t>::max()});
        break;
      default:
        table_.begin = nullptr;
        break;
    }
  }

  perseid_chunk_dim dims_[2];
  int64_t sizes_[2];
  perseid_async_operand table_{};
  size_t words_ = 0;
  std::unique_ptr<int64_t[]> begin_;
  std::unique_ptr<Resized<perseid_async_operand>> resized_;
};

// Signals of one table: as an arrival, whose chunks are mostly there, or as a sink.
struct FuzzSignals {
  FuzzSignals(Input& in, const FuzzChunks& chunks) : count(chunks.words()) {
    words.reset(new uint32_t[count]);
    arrival.struct_size = in.struct_size(sizeof arrival);
    sink.struct_size = in.struct_size(sizeof sink);
    // What a shorter struct leaves out must not make the wait the default of 30 s.
    const bool whole = arrival.struct_size == sizeof arrival && sink.struct_size == sizeof sink;
    epoch = whole ? in.pick<uint32_t>({1, 0, 0x80000000u, UINT32_MAX}) : 1;
    for (size_t c = 0; c < count; ++c) words[c] = epoch - (whole && in.rarely(32) ? 1 : 0);
    all_there = std::count(words.get(), words.get() + count, epoch) == static_cast<int64_t>(count);
    const int64_t first = in.rarely(16)       ? in.size(9)
                          : chunks.of_depth() ? 0
                                              : in.below(static_cast<int64_t>(count));
    auto* signals = words.get();
    if (in.rarely(64)) signals = nullptr;
    if (in.rarely(64)) signals = reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(signals) + 1);
    arrival.signals = sink.signals = signals;
    arrival.epoch = sink.epoch = epoch;
    if (in.rarely(8)) arrival.epoch_ptr = sink.epoch_ptr = &epoch;
    arrival.first_chunk = sink.first_chunk = first;
    arrival.deadline_ns = 1 + in.byte() * uint64_t{1000};
    if (in.rarely(8)) arrival.abort = &abort;
    if (in.rarely(8)) abort = 1;
    if (in.rarely(2)) arrival.record = &record;
  }

  size_t count;
  std::unique_ptr<uint32_t[]> words;
  uint32_t epoch = 0, abort = 0;
  bool all_there = false;
  perseid_wait_record record{};
  perseid_arrival arrival{};
  perseid_chunk_sink sink{};
};

// What the signals say of an execution by whole structs.
inline void check_signals(const perseid_matmul_desc& desc, const perseid_matmul_args& args,
                          const FuzzSignals& a, const FuzzSignals& b, const FuzzSignals& c,
                          perseid_status status) {
  if (desc.struct_size != sizeof desc || args.struct_size != sizeof args) return;
  const bool waits_a = desc.async_a != nullptr, waits_b = desc.async_b != nullptr;
  if (status == PERSEID_TIMEOUT) {
    require((waits_a && !a.all_there) || (waits_b && !b.all_there),
            "nobody waits in vain for chunks that are there");
    for (const FuzzSignals* each : {&a, &b}) {
      if (each->arrival.record == nullptr || each->arrival.struct_size != sizeof a.arrival ||
          (each == &a ? args.arrival_a : args.arrival_b) == nullptr)
        continue;
      const FuzzSignals& missing = each->record.operand == 0 ? a : b;
      require(each->record.status == PERSEID_TIMEOUT && each->record.chunk >= 0 &&
                  each->record.chunk < static_cast<int64_t>(missing.count),
              "the record names a chunk");
    }
  }
  if (status != PERSEID_OK || desc.sink_c == nullptr) return;
  require(c.sink.struct_size != sizeof c.sink ||
              std::count(c.words.get(), c.words.get() + c.count, c.epoch) ==
                  static_cast<int64_t>(c.count),
          "every chunk of c is signalled");
}

}  // namespace perseid_fuzz
