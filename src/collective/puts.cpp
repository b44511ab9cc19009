// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/puts.hpp"

#include <algorithm>
#include <bit>

#include "base/blocked_signals.hpp"
#include "collective/mesh.hpp"

namespace perseid::internal::collective {
namespace {

constexpr uint32_t kMagic = 0x50445350;  // "PSDP"
constexpr uint64_t kMostBytes = uint64_t{1} << 46;
constexpr size_t kMostParts = 64;  // rows of one system call
constexpr size_t kUnwanted = 64 << 10;
// How long one rank is read before the others get their turn.
constexpr std::chrono::milliseconds kTurn{1};
// How often the thread looks whether rows are complete that are to leave then.
constexpr std::chrono::microseconds kLook{100};
// How often it looks at the end whether anything moves.
constexpr std::chrono::milliseconds kEnding{20};
// What is queued at the end is given up when nothing has moved for so long.
constexpr std::chrono::seconds kStuck{2};
// How long the other ranks have to close their ends.
constexpr std::chrono::seconds kFarewell{1};

// The end of the rows from the beginning of the first one; false where there is no such end.
bool extent_of(const ByteRows& rows, uint64_t* end) {
  if (rows.count == 0 || rows.bytes > kMostBytes || rows.count > kMostBytes ||
      (rows.count > 1 && rows.stride < rows.bytes))
    return false;
  return !__builtin_mul_overflow(rows.count - 1, rows.stride, end) &&
         !__builtin_add_overflow(*end, rows.bytes, end) &&
         rows.bytes * rows.count / rows.count == rows.bytes;
}

bool fits(const Segment& segment, uint64_t offset, uint64_t bytes) {
  return bytes <= segment.bytes() && offset <= segment.bytes() - bytes;
}

// The parts of rows from byte `done` on, at most kMostParts.
size_t parts_of(std::byte* data, const ByteRows& rows, uint64_t done, iovec* parts) {
  size_t count = 0;
  while (count < kMostParts && done < rows.total()) {
    const uint64_t row = done / rows.bytes, in_row = done % rows.bytes;
    parts[count++] = {data + row * rows.stride + in_row, rows.bytes - in_row};
    done += rows.bytes - in_row;
  }
  return count;
}

}  // namespace

PutEngine::PutEngine(int32_t rank, std::unique_ptr<Links> links, std::function<void(int32_t)> lost)
    : rank_(rank),
      links_(std::move(links)),
      lost_(std::move(lost)),
      peers_(static_cast<size_t>(std::bit_width(links_->ranks() | bit(rank)))),
      unwanted_(kUnwanted) {
  for (size_t r = 0; r < peers_.size(); ++r) peers_[r].open.store((links_->ranks() >> r & 1) != 0);
  const BlockedSignals blocked;
  thread_ = std::thread([this] { run(); });
}

PutEngine::~PutEngine() {
  ended_.store(true);
  links_->wake();
  thread_.join();
}

void PutEngine::expose(uint32_t generation, uint32_t segment,
                       const std::shared_ptr<Segment>& memory) {
  const std::lock_guard lock(exposed_mutex_);
  std::erase_if(exposed_, [](const auto& each) { return each.second.expired(); });
  exposed_[{generation, segment}] = memory;
}

std::shared_ptr<Segment> PutEngine::exposed(uint32_t generation, uint32_t segment) {
  const std::lock_guard lock(exposed_mutex_);
  const auto found = exposed_.find({generation, segment});
  return found == exposed_.end() ? nullptr : found->second.lock();
}

PutEngine::Message PutEngine::message(Kind kind, const SegmentAddress& address) {
  Message message;
  message.header = {kMagic, kind, address.generation, address.segment, address.offset, 0, 1, 0};
  return message;
}

uint64_t PutEngine::Message::total() const {
  const bool rows = header.kind == kPut || header.kind == kGot;
  return sizeof header + (rows ? header.bytes * header.count : 0);
}

PutEngine::Message PutEngine::put_message(const SegmentAddress& address, const ByteRows& rows,
                                          PutSource source) {
  Message put = message(kPut, address);
  put.header.bytes = rows.bytes;
  put.header.count = rows.count;
  put.header.stride = rows.stride;
  put.source = std::move(source);
  return put;
}

PutEngine::Message PutEngine::signal_message(const SegmentAddress& word, uint32_t value) {
  Message signal = message(kSignal, word);
  signal.header.bytes = value;
  return signal;
}

void PutEngine::put(int32_t to, const SegmentAddress& address, const ByteRows& rows,
                    PutSource source) {
  if (rows.total() > 0) enqueue(to, put_message(address, rows, std::move(source)), false);
}

void PutEngine::put_when(const uint32_t* ready, uint32_t epoch, int32_t to,
                         const SegmentAddress& address, const ByteRows& rows, PutSource source,
                         const SegmentAddress& word) {
  {
    const std::lock_guard lock(pending_mutex_);
    std::weak_ptr<void> memory = std::exchange(source.keep, nullptr);
    pending_.push_back({ready, epoch, to, std::move(memory),
                        put_message(address, rows, std::move(source)),
                        signal_message(word, epoch)});
  }
  links_->wake();
}

void PutEngine::signal(int32_t to, const SegmentAddress& word, uint32_t value) {
  enqueue(to, signal_message(word, value), true);
}

bool PutEngine::get(int32_t from, const SegmentAddress& address, size_t bytes,
                    Clock::time_point deadline, void* data) {
  Message get = message(kGet, address);
  get.header.bytes = bytes;
  Question question;
  std::unique_lock lock(get_mutex_);
  const uint64_t number = get.header.stride = ++asked_;
  questions_[number] = &question;
  enqueue(from, std::move(get), true);
  got_changed_.wait_until(lock, deadline, [&] { return question.answered; });
  questions_.erase(number);
  if (!question.answered || question.bytes != bytes) return false;
  std::memcpy(data, question.data.data(), bytes);
  return true;
}

void PutEngine::keep(uint64_t members) {
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    if ((members >> rank & 1) == 0) close(static_cast<int32_t>(rank));
}

// `at_once`: a short message, which the caller sends itself where nobody sends and nothing waits.
void PutEngine::enqueue(int32_t to, Message message, bool at_once) {
  Peer& peer = this->peer(to);
  if (!peer.open.load()) return;
  {
    const std::lock_guard lock(peer.queue_mutex);
    peer.queue.push_back(std::move(message));
    at_once = at_once && peer.queue.size() == 1;
  }
  if (at_once && links_->sends_from_any_thread()) {
    const std::unique_lock lock(peer.send_mutex, std::try_to_lock);
    if (lock.owns_lock() && send_queued(to)) return;
  }
  links_->wake();
}

// The value of the abort word of a message's group, or 0.
uint32_t PutEngine::abort_of(const Message& message) {
  const std::shared_ptr<Segment> slab = exposed(message.header.generation, 0);
  return slab == nullptr ? 0 : cpu::load_acquire(reinterpret_cast<uint32_t*>(slab->data()));
}

// What the group does not need any more: it has failed. Not where a rank has left: others may still
// be in an operation that this rank and that one have completed.
bool PutEngine::is_void(const Message& message) {
  if (message.sent > 0 || (message.header.kind != kPut && message.header.kind != kSignal))
    return false;
  const uint32_t abort = abort_of(message);
  return abort != 0 && failure_of(abort) != Failure::kLeft;
}

// False: nothing is pending.
bool PutEngine::release_pending() {
  const std::lock_guard lock(pending_mutex_);
  std::erase_if(pending_, [&](Pending& each) {
    const std::shared_ptr<void> memory = each.memory.lock();
    if (memory == nullptr || is_void(each.put)) return true;
    // After a failure nobody computes it.
    if (!epoch_reached(cpu::load_acquire(each.ready), each.epoch)) return abort_of(each.put) != 0;
    each.put.source.keep = memory;
    enqueue(each.to, std::move(each.put), false);
    enqueue(each.to, std::move(each.signal), false);
    return true;
  });
  return !pending_.empty();
}

void PutEngine::look() {
  release_pending();
  links_->wake();
}

// The message that is to leave next, or null.
PutEngine::Message* PutEngine::first_of(Peer& peer) {
  const std::lock_guard lock(peer.queue_mutex);
  if (!peer.open.load()) peer.queue.clear();
  while (!peer.queue.empty() && is_void(peer.queue.front())) peer.queue.pop_front();
  return peer.queue.empty() ? nullptr : &peer.queue.front();
}

// With send_mutex. False: the link takes no more.
bool PutEngine::send_queued(int32_t rank) {
  Peer& peer = this->peer(rank);
  while (Message* first = first_of(peer)) {
    const ssize_t sent = send_part(rank, *first);
    if (sent < 0) {
      close(rank);
      return true;
    }
    if (sent == 0) return false;
    first->sent += static_cast<uint64_t>(sent);
    if (first->sent < first->total()) continue;
    const std::lock_guard lock(peer.queue_mutex);
    peer.queue.pop_front();
  }
  return true;
}

ssize_t PutEngine::send_part(int32_t rank, Message& message) {
  iovec parts[kMostParts + 1];
  size_t count = 0;
  if (message.sent < sizeof(Header))
    parts[count++] = {reinterpret_cast<std::byte*>(&message.header) + message.sent,
                      sizeof(Header) - message.sent};
  const uint64_t done = message.sent < sizeof(Header) ? 0 : message.sent - sizeof(Header);
  if (message.header.kind == kPut) {
    count += parts_of(const_cast<std::byte*>(message.source.data),
                      {message.header.bytes, message.header.count, message.source.stride}, done,
                      parts + count);
  } else if (message.header.kind == kGot) {
    count += parts_of(message.answer.data(), {message.header.bytes, 1, 0}, done, parts + count);
  }
  return links_->send(rank, {parts, count});
}

void PutEngine::close(int32_t rank) {
  if (peer(rank).open.exchange(false)) links_->close(rank);
}

void PutEngine::run() {
  const int32_t size = static_cast<int32_t>(peers_.size());
  Clock::time_point moved = Clock::now(), farewell = Clock::time_point::max();
  for (;;) {
    const bool ended = ended_.load(), looks = release_pending();
    uint64_t open = 0, blocked = 0;
    for (int32_t step = 1; step < size; ++step) {
      const int32_t rank = (rank_ + size - step) % size;
      Peer& peer = this->peer(rank);
      bool all = true;
      {
        const std::lock_guard lock(peer.send_mutex);
        all = send_queued(rank);
      }
      if (!peer.open.load()) continue;
      open |= bit(rank);
      if (!all) blocked |= bit(rank);
    }
    const Clock::time_point now = Clock::now();
    if (moved_ || !ended) moved = now;
    moved_ = false;
    if (ended && farewell == Clock::time_point::max() && (blocked == 0 || now - moved > kStuck)) {
      // The others read what has left and close; closing before would take it back.
      farewell = now + kFarewell;
      for (int32_t rank = 0; rank < size; ++rank)
        if (peer(rank).open.load()) links_->finish(rank);
    }
    if (farewell != Clock::time_point::max() && (open == 0 || now > farewell)) return;
    std::optional<std::chrono::nanoseconds> limit;
    if (ended) limit = kEnding;
    if (looks) limit = kLook;
    const Links::Ready ready = links_->wait(open, blocked, limit);
    if (ready.writable != 0) moved_ = true;
    for (int32_t rank = 0; rank < size; ++rank) {
      if ((ready.readable & bit(rank)) != 0) read(rank);
      if ((ready.lost & bit(rank)) == 0) continue;
      close(rank);
      lost_(rank);
    }
  }
}

void PutEngine::read(int32_t rank) {
  Peer& peer = this->peer(rank);
  moved_ = true;
  // Then others get their turn.
  const Clock::time_point until = Clock::now() + kTurn;
  for (Progress progress = Progress::kMore; progress != Progress::kNothing;) {
    progress = peer.raw_bytes < sizeof(Header) ? read_header(rank) : read_rows(rank);
    // An end here says nothing: the mesh finds out who is lost.
    if (progress == Progress::kEnd) close(rank);
    if (progress == Progress::kEnd || Clock::now() > until) return;
  }
}

PutEngine::Progress PutEngine::progress_of(ssize_t got) {
  if (got > 0) return Progress::kMore;
  return got == 0 ? Progress::kNothing : Progress::kEnd;
}

PutEngine::Progress PutEngine::read_header(int32_t rank) {
  Peer& peer = this->peer(rank);
  const iovec part{peer.raw.data() + peer.raw_bytes, sizeof(Header) - peer.raw_bytes};
  const ssize_t got = links_->receive(rank, {&part, 1});
  if (got > 0) {
    peer.raw_bytes += static_cast<size_t>(got);
    if (peer.raw_bytes == sizeof(Header) && !take_header(rank)) return Progress::kEnd;
  }
  return progress_of(got);
}

// False: this is no message that a rank may send.
bool PutEngine::take_header(int32_t rank) {
  Peer& peer = this->peer(rank);
  Header& header = peer.header;
  std::memcpy(&header, peer.raw.data(), sizeof header);
  peer.received = 0;
  if (header.magic != kMagic) return false;
  peer.target = exposed(header.generation, header.segment);
  const auto is_here = [&](uint64_t bytes) { return fits(*peer.target, header.offset, bytes); };
  if (header.kind == kPut) {
    uint64_t extent = 0;
    const ByteRows rows{header.bytes, header.count, header.stride};
    return header.bytes > 0 && extent_of(rows, &extent) &&
           (peer.target == nullptr || is_here(extent));
  }
  if (header.kind == kGot && header.bytes > 0)
    return header.bytes <= kLongestGet && header.count == 1;
  peer.raw_bytes = 0;
  const std::shared_ptr<Segment> target = std::move(peer.target);
  peer.target.reset();
  switch (header.kind) {
    case kSignal:
      if (target == nullptr) return true;
      if (header.offset % sizeof(uint32_t) != 0 || !fits(*target, header.offset, sizeof(uint32_t)))
        return false;
      cpu::set_signal(reinterpret_cast<uint32_t*>(target->data() + header.offset),
                      static_cast<uint32_t>(header.bytes));
      return true;
    case kGet: {
      Message answer = message(kGot, {});
      answer.header.stride = header.stride;
      if (header.offset % sizeof(uint32_t) != 0 || header.bytes % sizeof(uint32_t) != 0)
        return false;
      if (target != nullptr && header.bytes <= kLongestGet &&
          fits(*target, header.offset, header.bytes)) {
        answer.header.bytes = header.bytes;
        load_words(target->data() + header.offset, header.bytes, answer.answer.data());
      }
      enqueue(rank, std::move(answer), true);
      return true;
    }
    case kGot:
      give_answer(header, {});
      return true;
    default:
      return false;
  }
}

PutEngine::Progress PutEngine::read_rows(int32_t rank) {
  Peer& peer = this->peer(rank);
  const Header& header = peer.header;
  const ByteRows rows{header.bytes, header.count, header.stride};
  const bool wanted = header.kind == kPut && peer.target != nullptr;
  iovec parts[kMostParts];
  size_t count = 1;
  if (wanted) {
    count = parts_of(peer.target->data() + header.offset, rows, peer.received, parts);
  } else if (header.kind == kPut) {
    parts[0] = {unwanted_.data(),
                std::min<uint64_t>(unwanted_.size(), rows.total() - peer.received)};
  } else {
    parts[0] = {peer.answer.data() + peer.received, header.bytes - peer.received};
  }
  const ssize_t got = links_->receive(rank, {parts, count});
  if (got > 0) peer.received += static_cast<uint64_t>(got);
  if (peer.received == rows.total()) {
    if (header.kind == kGot) give_answer(header, peer.answer);
    peer.target.reset();
    peer.raw_bytes = 0;
  }
  return progress_of(got);
}

void PutEngine::give_answer(const Header& header, std::span<const std::byte> data) {
  const std::lock_guard lock(get_mutex_);
  const auto found = questions_.find(header.stride);
  if (found == questions_.end()) return;  // nobody waits for that one any more
  Question& question = *found->second;
  std::copy_n(data.begin(), std::min<size_t>(data.size(), header.bytes), question.data.begin());
  question.bytes = header.bytes;
  question.answered = true;
  got_changed_.notify_all();
}

}  // namespace perseid::internal::collective
