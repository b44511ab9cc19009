// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Links through MPI. MPI offers nothing to sleep on until a message comes, so the thread that waits
// asks again and again: at once while messages come, more rarely the longer there was none, so that
// it leaves the cores to the product. wake() ends a pause.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "collective/mpi.hpp"
#include "cpu/waits.hpp"

namespace perseid::internal::collective {
namespace {

using cpu::Clock;
using std::chrono::nanoseconds;

// After a message: how long MPI is asked without a pause; then a message is noticed late by at most
// a part of the time without one.
constexpr std::chrono::microseconds kBusy{50};
constexpr int kPart = 16;
constexpr std::chrono::milliseconds kLongestPause{1};
// How long what was sent last has to leave, once the others were waited for.
constexpr std::chrono::milliseconds kLast{200};

class MpiLinks final : public Links {
 public:
  MpiLinks(const perseid_mpi_functions& mpi, perseid_mpi_links* links, int32_t rank, int32_t size)
      : mpi_(mpi),
        links_(links),
        ranks_((size < 64 ? (uint64_t{1} << size) - 1 : ~uint64_t{0}) & ~(uint64_t{1} << rank)),
        wake_(above_standard_streams(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {}
  ~MpiLinks() override { mpi_.disconnect(links_, nanoseconds(kLast).count()); }
  MpiLinks(const MpiLinks&) = delete;
  MpiLinks& operator=(const MpiLinks&) = delete;

  const char* name() const override { return "mpi"; }
  uint64_t ranks() const override { return ranks_; }
  bool sends_from_any_thread() const override { return false; }
  ssize_t send(int32_t rank, std::span<const iovec> parts) override {
    return mpi_.send(links_, rank, parts.data(), parts.size());
  }
  ssize_t receive(int32_t rank, std::span<const iovec> parts) override {
    return mpi_.receive(links_, rank, parts.data(), parts.size());
  }
  void finish(int32_t rank) override { mpi_.finish(links_, rank); }
  // A closed link is not used again. Its requests are freed together with those of all links.
  void close(int32_t) override {}

  Ready wait(uint64_t ranks, uint64_t blocked, std::optional<nanoseconds> limit) override {
    // Short pauses are to be short.
    if (!std::exchange(has_slack_, true)) ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    const Clock::time_point start = Clock::now();
    for (;;) {
      Ready ready;
      mpi_.progress(links_, &ready.readable, &ready.writable, &ready.lost);
      ready.readable &= ranks;
      ready.writable &= blocked;
      ready.lost &= ranks;
      const Clock::time_point now = Clock::now();
      if ((ready.readable | ready.writable | ready.lost) != 0) moved_ = now;
      const bool waited = limit.has_value() && now - start >= *limit;
      if (moved_ == now || waited) return ready;
      nanoseconds pause(0);
      if (now - moved_ > kBusy)
        pause = std::min<nanoseconds>((now - moved_) / kPart, kLongestPause);
      if (limit.has_value()) pause = std::min<nanoseconds>(pause, *limit - (now - start));
      if (pause.count() == 0) std::this_thread::yield();
      if (!sleep(pause)) continue;
      moved_ = Clock::now();
      return {};
    }
  }
  void wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(wake_.number(), &one, sizeof one);
  }

 private:
  // True: something woke it.
  bool sleep(nanoseconds time) const {
    pollfd polled{wake_.number(), POLLIN, 0};
    const timespec limit{.tv_sec = 0, .tv_nsec = time.count()};
    uint64_t ignored = 0;
    return ::ppoll(&polled, 1, &limit, nullptr) > 0 &&
           ::read(wake_.number(), &ignored, sizeof ignored) > 0;
  }

  const perseid_mpi_functions& mpi_;
  perseid_mpi_links* const links_;
  const uint64_t ranks_;
  const Descriptor wake_;
  Clock::time_point moved_{};  // when a message came or left, or wake() was called
  bool has_slack_ = false;
};

std::atomic<uint32_t> next_number{0};

}  // namespace

std::unique_ptr<Links> links_of_mpi(const perseid_mpi_functions& mpi, uint32_t number, int32_t rank,
                                    int32_t size) {
  perseid_mpi_links* const links = mpi.connect(number);
  if (links == nullptr) return nullptr;
  return std::make_unique<MpiLinks>(mpi, links, rank, size);
}

std::string MpiOffer::encode() const {
  return Writer().number(usable ? 1 : 0).number(number, 4).take();
}

std::optional<MpiOffer> MpiOffer::decode(std::string_view payload) {
  Reader reader(payload);
  MpiOffer offer;
  offer.usable = reader.number() == 1;
  offer.number = static_cast<uint32_t>(reader.number(4));
  return reader.complete() ? std::optional(offer) : std::nullopt;
}

Status offer_mpi(const perseid_mpi_functions* mpi, MpiOffer* offer) {
  constexpr const char* kVariable = "PERSEID_TRANSPORT";
  const char* const value = std::getenv(kVariable);
  const std::string_view wanted = value == nullptr ? "" : value;
  *offer = {.usable = false, .number = next_number.load()};
  if (Status status = check_environment(); !status.ok()) return status;
  if (wanted == "sockets") return {};
  const char* level = "";
  offer->usable = mpi != nullptr && mpi->allows_threads(&level) != 0;
  if (offer->usable || wanted != "mpi") return {};
  if (mpi == nullptr)
    return Status::error(PERSEID_UNSUPPORTED, kVariable, " is mpi, but the ranks have not met by ",
                         "MPI; set PERSEID_RENDEZVOUS to mpi:openmpi or mpi:mpich on all ranks");
  return Status::error(PERSEID_UNSUPPORTED, kVariable, " is mpi, but the program has initialised ",
                       "MPI with ", level, "; ask MPI_Init_thread for MPI_THREAD_MULTIPLE");
}

bool agree_on_mpi(const std::vector<std::string>& offers, uint32_t* number) {
  *number = 0;
  for (const std::string& each : offers) {
    const std::optional<MpiOffer> offer = MpiOffer::decode(each);
    if (!offer.has_value() || !offer->usable) return false;
    *number = std::max(*number, offer->number);
  }
  next_number.store(*number + 1);
  return true;
}

}  // namespace perseid::internal::collective
