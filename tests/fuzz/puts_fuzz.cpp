// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Whatever a rank of another host sends through the connection for data, the engine writes into
// segments that are exposed, answers, or closes the connection; it ends in each case.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "collective/puts.hpp"
#include "collective/wire.hpp"
#include "driver.hpp"

namespace {

using namespace perseid::internal;
using namespace perseid::internal::collective;
using perseid_fuzz::require;

constexpr uint32_t kMagic = 0x50445350;
constexpr size_t kBytes = 4096;

std::shared_ptr<Segment> segment() {
  std::shared_ptr<Segment> made;
  Descriptor unused;
  require(Segment::make(kBytes, &made, &unused).ok(), "there is memory");
  return made;
}

std::string header(uint32_t kind, uint64_t offset, uint64_t bytes, uint64_t count,
                   uint64_t stride) {
  return Writer()
      .number(kMagic, 4)
      .number(kind, 4)
      .number(1, 4)
      .number(0, 4)
      .number(offset)
      .number(bytes)
      .number(count)
      .number(stride)
      .take();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::shared_ptr<Segment> exposed = segment(), other = segment();
  int pair[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0, "there are sockets");
  std::vector<Descriptor> sockets(2);
  sockets[1] = Descriptor(pair[0]);
  const Descriptor rank(pair[1]);
  {
    PutEngine engine(0, links_of_sockets(std::move(sockets)), [](int32_t) {});
    engine.expose(1, 0, exposed);
    for (size_t sent = 0; sent < size;) {
      const ssize_t wrote = send(rank.number(), data + sent, size - sent, MSG_NOSIGNAL);
      pollfd polled{rank.number(), POLLOUT, 0};
      if (wrote > 0) {
        sent += static_cast<size_t>(wrote);
      } else if (errno != EAGAIN || poll(&polled, 1, 100) <= 0) {
        break;  // closed
      }
    }
    shutdown(rank.number(), SHUT_WR);
    for (;;) {
      char answer[4096];
      pollfd polled{rank.number(), POLLIN, 0};
      const int ready = poll(&polled, 1, 5000);
      if (ready < 0 && errno == EINTR) continue;
      require(ready > 0, "the connection ends");
      if (recv(rank.number(), answer, sizeof answer, 0) <= 0) break;
    }
  }
  require(std::all_of(other->data(), other->data() + kBytes,
                      [](std::byte byte) { return byte == std::byte{0}; }),
          "what is not exposed stays as it is");
  return 0;
}

std::vector<std::string> perseid_fuzz::seeds() {
  const std::string rows = header(1, 64, 8, 3, 100) + std::string(24, 'x');
  const std::string signal = header(2, 128, 7, 1, 0), get = header(3, 64, 24, 1, 1);
  return {rows + signal, get + get, header(4, 0, 8, 1, 1) + std::string(8, 'y'),
          header(1, kBytes - 8, 8, 1, 0) + std::string(8, 'z') + signal,
          header(1, kBytes - 7, 8, 1, 0) + std::string(8, 'z')};
}
