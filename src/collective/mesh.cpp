// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/mesh.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/blocked_signals.hpp"

namespace perseid::internal::collective {
namespace {

// Descriptors that were sent, but not taken. More are not of this protocol.
constexpr size_t kMostDescriptors = 16;
constexpr size_t kMostMessages = 1024;
// What another round of an agreement gets, once a rank has turned out to be missing.
constexpr std::chrono::seconds kAnotherRound{2};
// What a rank gets to take a last message.
constexpr std::chrono::milliseconds kFarewell{100};

bool is_abort_value(uint32_t value) {
  const Failure failure = failure_of(value);
  return Failure::kLost <= failure && failure <= Failure::kLeft && failed_rank(value) >= 0 &&
         failed_rank(value) < kMostRanks;
}

}  // namespace

void set_abort(uint32_t* word, Failure failure, int32_t rank) {
  uint32_t none = 0;
  __atomic_compare_exchange_n(word, &none, abort_value(failure, rank), false, __ATOMIC_ACQ_REL,
                              __ATOMIC_ACQUIRE);
}

Mesh::Mesh(int32_t rank, std::vector<Descriptor> sockets, std::shared_ptr<ThreadHub> hub)
    : rank_(rank),
      peers_(sockets.size()),
      hub_(std::move(hub)),
      wake_(above_standard_streams(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  for (size_t r = 0; r < sockets.size(); ++r) {
    peers_[r].socket = std::move(sockets[r]);
    peers_[r].lost = !peers_[r].socket.opened() && static_cast<int32_t>(r) != rank_;
  }
  const BlockedSignals blocked;
  thread_ = std::thread([this] { run(); });
}

Mesh::~Mesh() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(wake_.number(), &one, sizeof one);
  thread_.join();
}

void Mesh::run() {
  std::vector<pollfd> polled;
  std::vector<int32_t> ranks;
  for (;;) {
    polled.assign(1, {wake_.number(), POLLIN, 0});
    ranks.assign(1, rank_);
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;
      for (int32_t rank = 0; rank < size(); ++rank) {
        const Peer& peer = peers_[static_cast<size_t>(rank)];
        if (peer.lost || !peer.socket.opened()) continue;
        polled.push_back({peer.socket.number(), POLLIN, 0});
        ranks.push_back(rank);
      }
    }
    ::poll(polled.data(), polled.size(), -1);
    for (size_t i = 1; i < polled.size(); ++i)
      if (polled[i].revents != 0) read(ranks[i]);
  }
}

void Mesh::read(int32_t rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  Received received = receive(peer.socket, &peer.parser);
  const std::lock_guard lock(mutex_);
  for (Descriptor& descriptor : received.descriptors)
    peer.descriptors.push_back(std::move(descriptor));
  for (Frame& frame : received.frames) handle(rank, std::move(frame));
  if (!received.open || peer.descriptors.size() > kMostDescriptors ||
      peer.messages.size() > kMostMessages)
    lose(rank);
  changed_.notify_all();
}

void Mesh::handle(int32_t rank, Frame frame) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  switch (frame.type) {
    case FrameType::kMessage:
    case FrameType::kSegment:
      peer.messages.push_back(std::move(frame));
      return;
    case FrameType::kProposal:
      if (const auto proposal = Proposal::decode(frame.payload)) {
        peer.proposed = proposal->members;
        peer.proposed_generation = proposal->generation;
        return;
      }
      break;
    case FrameType::kGoodbye: {
      Reader reader(frame.payload);
      peer.left_after = reader.number();
      if (!reader.complete()) break;
      peer.left = true;
      if (operation_.load() > peer.left_after) raise(Failure::kLeft, rank);
      return;
    }
    case FrameType::kAbort: {
      Reader reader(frame.payload);
      const auto value = static_cast<uint32_t>(reader.number(4));
      if (!reader.complete() || !is_abort_value(value)) break;
      if (watch_.abort == nullptr || frame.generation != watch_.generation) return;
      if (failed_rank(value) >= static_cast<int32_t>(watch_.members.size())) break;
      set_abort(watch_.abort, failure_of(value), failed_rank(value));
      return;
    }
    default:
      break;
  }
  lose(rank);
}

void Mesh::lose(int32_t rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.lost) return;
  peer.lost = true;
  // The number of the socket stays taken, as others may be about to use it.
  ::shutdown(peer.socket.number(), SHUT_RDWR);
  if (!peer.left) raise(Failure::kLost, rank);
}

void Mesh::give_up(int32_t rank) {
  const std::lock_guard lock(mutex_);
  lose(rank);
  changed_.notify_all();
}

void Mesh::leave_behind(int32_t rank, uint64_t members, uint32_t generation) {
  send(rank, {FrameType::kProposal, 0, Proposal{members & ~bit(rank), generation}.encode()},
       Clock::now() + kFarewell);
  give_up(rank);
}

void Mesh::raise(Failure failure, int32_t rank) {
  if (watch_.abort == nullptr) return;
  const auto& members = watch_.members;
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found != members.end())
    set_abort(watch_.abort, failure, static_cast<int32_t>(found - members.begin()));
}

std::string Mesh::local_address() const {
  for (const Peer& peer : peers_)
    if (peer.socket.opened()) return collective::local_address(peer.socket);
  return "";
}

void Mesh::watch(Watch watch) {
  const std::lock_guard lock(mutex_);
  watch_ = std::move(watch);
  operation_.store(0);
  for (int32_t rank = 0; rank < size(); ++rank)
    if (const Peer& peer = peers_[static_cast<size_t>(rank)]; peer.lost && !peer.left)
      raise(Failure::kLost, rank);
}

int32_t Mesh::begin_operation(uint64_t number) {
  operation_.store(number);
  const std::lock_guard lock(mutex_);
  for (const int32_t rank : watch_.members)
    if (const Peer& peer = peers_[static_cast<size_t>(rank)]; peer.left && peer.left_after < number)
      return rank;
  return -1;
}

bool Mesh::send(int32_t to, const Frame& frame, Clock::time_point deadline, int descriptor) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  {
    const std::lock_guard lock(mutex_);
    if (peer.lost) return false;
  }
  return send_frame(peer.socket, frame, deadline, descriptor);
}

Failure Mesh::take(int32_t from, uint32_t generation, Clock::time_point deadline, Frame* frame,
                   Descriptor* descriptor) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!peer.messages.empty()) {
      Frame& next = peer.messages.front();
      // A rank that is ahead has agreed already; those before belong to nothing any more.
      const auto ahead = static_cast<int32_t>(next.generation - generation);
      if (ahead > 0) break;
      Descriptor sent;
      if (next.type == FrameType::kSegment && !peer.descriptors.empty()) {
        sent = std::move(peer.descriptors.front());
        peer.descriptors.pop_front();
      }
      const bool wanted = ahead == 0;
      if (wanted) {
        *frame = std::move(next);
        if (descriptor != nullptr) *descriptor = std::move(sent);
      }
      peer.messages.pop_front();
      if (wanted) return Failure::kNone;
    }
    if (peer.left) return Failure::kLeft;
    if (peer.lost || is_left_behind(from, generation)) return Failure::kLost;
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && Clock::now() >= deadline)
      return Failure::kSilent;
  }
}

// Whether another rank has proposed since to go on with this one, but without `rank`.
bool Mesh::is_left_behind(int32_t rank, uint32_t generation) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return (peer.proposed & bit(rank_)) != 0 && (peer.proposed & bit(rank)) == 0 && !peer.lost &&
           static_cast<int32_t>(peer.proposed_generation - generation) > 0;
  });
}

bool Mesh::agree(uint64_t members, uint32_t current, Clock::time_point deadline,
                 uint64_t* survivors, uint32_t* generation) {
  const auto gone = [&](int32_t rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    return peer.lost || peer.left;
  };
  const uint64_t me = bit(rank_), at_first = members;
  std::unique_lock lock(mutex_);
  for (;;) {
    for (int32_t rank = 0; rank < size(); ++rank)
      if (rank != rank_ && gone(rank)) members &= ~bit(rank);
    const std::string proposal = Proposal{members, current + 1}.encode();
    lock.unlock();
    for (int32_t rank = 0; rank < size(); ++rank)
      if (rank != rank_ && (members & bit(rank)) != 0)
        send(rank, {FrameType::kProposal, 0, proposal}, deadline);
    lock.lock();
    // Who proposes to go on without this rank may be gone since.
    for (int32_t rank = 0; rank < size(); ++rank) {
      const Peer& peer = peers_[static_cast<size_t>(rank)];
      if ((at_first & bit(rank)) != 0 && peer.proposed != 0 && (peer.proposed & me) == 0)
        return false;
    }
    // Until all members have proposed the same, or there are fewer.
    for (bool changed = false; !changed;) {
      uint64_t left = members;
      uint32_t newest = current + 1;
      uint64_t missing = 0;
      for (int32_t rank = 0; rank < size(); ++rank) {
        if (rank == rank_ || (members & bit(rank)) == 0) continue;
        const Peer& peer = peers_[static_cast<size_t>(rank)];
        // What was agreed upon before counts no more.
        const bool fresh =
            peer.proposed != 0 && (peer.proposed != at_first ||
                                   static_cast<int32_t>(peer.proposed_generation - current) > 0);
        if (gone(rank)) {
          left &= ~bit(rank);
        } else if (!fresh) {
          missing |= bit(rank);
        } else if (peer.proposed != members) {
          left &= peer.proposed;
          if ((peer.proposed & ~members) != 0) missing |= bit(rank);
        } else if (static_cast<int32_t>(peer.proposed_generation - newest) > 0) {
          newest = peer.proposed_generation;
        }
      }
      if ((left & me) == 0) return false;
      if (left == members && missing == 0) {
        *survivors = members;
        *generation = newest;
        return true;
      }
      if (left != members) {
        changed = true;
        members = left;
      } else if (changed_.wait_until(lock, deadline) == std::cv_status::timeout &&
                 Clock::now() >= deadline) {
        // They are left behind, and find out when they go on.
        const std::string without = Proposal{members & ~missing, newest}.encode();
        lock.unlock();
        for (int32_t rank = 0; rank < size(); ++rank)
          if ((missing & bit(rank)) != 0)
            send(rank, {FrameType::kProposal, 0, without}, Clock::now() + kFarewell);
        lock.lock();
        for (int32_t rank = 0; rank < size(); ++rank)
          if ((missing & bit(rank)) != 0) lose(rank);
        changed = true;
        deadline = Clock::now() + kAnotherRound;
      }
    }
  }
}

void Mesh::leave(uint64_t number) {
  const std::string payload = Writer().number(number).take();
  for (int32_t rank = 0; rank < size(); ++rank)
    if (rank != rank_)
      send(rank, {FrameType::kGoodbye, 0, payload}, Clock::now() + std::chrono::milliseconds(100));
}

}  // namespace perseid::internal::collective
