// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of ranks that share none, since they are on several hosts. Every rank has its own copy of
// each segment, and what it writes for another rank is put into that rank's copy through a link
// (links.hpp): a socket, or MPI.
//
// Messages to one rank take effect in their order: data that was put is there before a word that
// was signalled after it. A thread of each rank makes progress: it sends what is queued, first to
// the rank before this one, then to the one before that, and writes what comes in. Nothing waits
// for it but get().
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "collective/links.hpp"
#include "collective/segment.hpp"
#include "cpu/waits.hpp"

namespace perseid::internal::collective {

using cpu::Clock;

// Copies 32-bit words that others may be writing; the first one with acquire order.
inline void load_words(const std::byte* from, size_t bytes, void* to) {
  for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
    const uint32_t word = cpu::load_acquire(reinterpret_cast<const uint32_t*>(from + at));
    std::memcpy(static_cast<std::byte*>(to) + at, &word, sizeof word);
  }
}

// A place in a segment; ranks name segments alike.
struct SegmentAddress {
  uint32_t generation = 0, segment = 0;
  uint64_t offset = 0;
};

// `count` rows of `bytes`, `stride` bytes apart.
struct ByteRows {
  uint64_t bytes = 0, count = 1, stride = 0;

  uint64_t total() const { return bytes * count; }
};

// Rows of memory that leave for another rank.
struct PutSource {
  const std::byte* data = nullptr;
  uint64_t stride = 0;
  std::shared_ptr<void> keep;  // what holds the memory
};

class PutEngine {
 public:
  // The links serve nothing else. lost(rank): its link reports a failure.
  PutEngine(int32_t rank, std::unique_ptr<Links> links, std::function<void(int32_t)> lost);
  // Sends what is queued, unless nothing moves for some seconds.
  ~PutEngine();
  PutEngine(const PutEngine&) = delete;
  PutEngine& operator=(const PutEngine&) = delete;

  const Links& links() const { return *links_; }
  // From now on other ranks may write and read here, as long as the segment lives. Segment 0 of a
  // generation begins with its abort word.
  void expose(uint32_t generation, uint32_t segment, const std::shared_ptr<Segment>& memory);

  // The memory must not change until the other rank has read what it is put for.
  void put(int32_t to, const SegmentAddress& address, const ByteRows& rows, PutSource source);
  // The same, and signal() after it, once the word `ready` of the same memory has reached the
  // epoch; not at all where the group fails or the memory goes before.
  void put_when(const uint32_t* ready, uint32_t epoch, int32_t to, const SegmentAddress& address,
                const ByteRows& rows, PutSource source, const SegmentAddress& word);
  // Takes up what is complete by now; its memory is kept from here on.
  void look();
  // Stores the value with release order and wakes whoever waits for the word.
  void signal(int32_t to, const SegmentAddress& word, uint32_t value);
  // Reads some words of the memory of another rank, from any thread. False: no answer until the
  // deadline.
  bool get(int32_t from, const SegmentAddress& address, size_t bytes, Clock::time_point deadline,
           void* data);
  // Ends the connections to all other ranks than these.
  void keep(uint64_t members);

 private:
  enum Kind : uint32_t { kPut = 1, kSignal, kGet, kGot };
  static constexpr uint64_t kLongestGet = 256;

  struct Header {
    uint32_t magic, kind;
    uint32_t generation, segment;
    uint64_t offset;
    uint64_t bytes, count, stride;  // of a signal: bytes is the value
  };
  struct Message {
    Header header{};
    PutSource source;
    std::array<std::byte, kLongestGet> answer;
    uint64_t sent = 0;

    uint64_t total() const;
  };
  struct Pending {
    const uint32_t* ready;
    uint32_t epoch;
    int32_t to;
    std::weak_ptr<void> memory;
    Message put, signal;
  };
  struct Peer {
    std::atomic<bool> open{false};
    std::mutex queue_mutex, send_mutex;  // send_mutex first; it is held while a message leaves
    std::deque<Message> queue;
    // What comes in, read by the thread alone.
    std::array<std::byte, sizeof(Header)> raw;
    size_t raw_bytes = 0;
    Header header{};
    std::shared_ptr<Segment> target;
    std::array<std::byte, kLongestGet> answer;
    uint64_t received = 0;
  };
  // What get() asks, and its answer.
  struct Question {
    std::array<std::byte, kLongestGet> data;
    uint64_t bytes = 0;
    bool answered = false;
  };
  enum class Progress { kMore, kNothing, kEnd };  // of one read

  Peer& peer(int32_t rank) { return peers_[static_cast<size_t>(rank)]; }
  static Message message(Kind kind, const SegmentAddress& address);
  static Message put_message(const SegmentAddress& address, const ByteRows& rows, PutSource source);
  static Message signal_message(const SegmentAddress& word, uint32_t value);
  void enqueue(int32_t to, Message message, bool at_once);
  std::shared_ptr<Segment> exposed(uint32_t generation, uint32_t segment);
  uint32_t abort_of(const Message& message);
  bool is_void(const Message& message);
  Message* first_of(Peer& peer);
  bool release_pending();
  bool send_queued(int32_t rank);
  ssize_t send_part(int32_t rank, Message& message);
  void run();
  static Progress progress_of(ssize_t got);
  void read(int32_t rank);
  Progress read_header(int32_t rank);
  bool take_header(int32_t rank);
  Progress read_rows(int32_t rank);
  void give_answer(const Header& header, std::span<const std::byte> data);
  void close(int32_t rank);

  const int32_t rank_;
  const std::unique_ptr<Links> links_;
  const std::function<void(int32_t)> lost_;
  std::vector<Peer> peers_;
  std::mutex exposed_mutex_;
  std::map<std::pair<uint32_t, uint32_t>, std::weak_ptr<Segment>> exposed_;
  std::mutex pending_mutex_;
  std::vector<Pending> pending_;
  std::mutex get_mutex_;
  std::condition_variable got_changed_;
  uint64_t asked_ = 0;                       // the number of the last question
  std::map<uint64_t, Question*> questions_;  // of threads that wait for the answer
  std::vector<std::byte> unwanted_;          // rows that nobody takes any more
  bool moved_ = false;                       // since the thread last looked
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace perseid::internal::collective
