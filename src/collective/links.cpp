// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/links.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace perseid::internal::collective {
namespace {

class SocketLinks final : public Links {
 public:
  explicit SocketLinks(std::vector<Descriptor> sockets)
      : sockets_(std::move(sockets)),
        wake_(above_standard_streams(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {}

  const char* name() const override { return "sockets"; }
  uint64_t ranks() const override {
    uint64_t ranks = 0;
    for (size_t rank = 0; rank < sockets_.size(); ++rank)
      if (sockets_[rank].opened()) ranks |= uint64_t{1} << rank;
    return ranks;
  }
  bool sends_from_any_thread() const override { return true; }

  ssize_t send(int32_t rank, std::span<const iovec> parts) override {
    msghdr whole{};
    whole.msg_iov = const_cast<iovec*>(parts.data());
    whole.msg_iovlen = parts.size();
    const ssize_t wrote = ::sendmsg(socket(rank), &whole, MSG_NOSIGNAL);
    return wrote >= 0 ? wrote : error();
  }
  ssize_t receive(int32_t rank, std::span<const iovec> parts) override {
    const ssize_t got = ::readv(socket(rank), parts.data(), static_cast<int>(parts.size()));
    if (got == 0) return -1;
    return got > 0 ? got : error();
  }
  void finish(int32_t rank) override { ::shutdown(socket(rank), SHUT_WR); }
  // The number of the socket stays taken, as others may be about to use it.
  void close(int32_t rank) override { ::shutdown(socket(rank), SHUT_RDWR); }

  Ready wait(uint64_t ranks, uint64_t blocked,
             std::optional<std::chrono::nanoseconds> limit) override {
    polled_.assign(1, {wake_.number(), POLLIN, 0});
    polled_ranks_.assign(1, -1);
    for (int32_t rank = 0; rank < static_cast<int32_t>(sockets_.size()); ++rank) {
      if ((ranks >> rank & 1) == 0) continue;
      const bool blocks = (blocked >> rank & 1) != 0;
      polled_.push_back({socket(rank), static_cast<short>(blocks ? POLLIN | POLLOUT : POLLIN), 0});
      polled_ranks_.push_back(rank);
    }
    timespec time{};
    if (limit.has_value()) {
      time.tv_sec = limit->count() / 1'000'000'000;
      time.tv_nsec = limit->count() % 1'000'000'000;
    }
    ::ppoll(polled_.data(), polled_.size(), limit.has_value() ? &time : nullptr, nullptr);
    if (polled_[0].revents != 0) {
      uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.number(), &ignored, sizeof ignored);
    }
    Ready ready;
    for (size_t i = 1; i < polled_.size(); ++i) {
      const uint64_t bit = uint64_t{1} << polled_ranks_[i];
      if ((polled_[i].revents & POLLOUT) != 0) ready.writable |= bit;
      if ((polled_[i].revents & ~POLLOUT) != 0) ready.readable |= bit;
    }
    return ready;
  }
  void wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(wake_.number(), &one, sizeof one);
  }

 private:
  int socket(int32_t rank) const { return sockets_[static_cast<size_t>(rank)].number(); }
  static ssize_t error() { return errno == EAGAIN || errno == EINTR ? 0 : -1; }

  const std::vector<Descriptor> sockets_;
  const Descriptor wake_;
  std::vector<pollfd> polled_;
  std::vector<int32_t> polled_ranks_;
};

}  // namespace

std::unique_ptr<Links> links_of_sockets(std::vector<Descriptor> sockets) {
  return std::make_unique<SocketLinks>(std::move(sockets));
}

}  // namespace perseid::internal::collective
