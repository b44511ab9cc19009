// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Stream sockets with deadlines. All are non-blocking and closed on exec.
//
// An address is "unix:PATH" or "tcp:HOST:PORT" (an IPv6 address in brackets). A Unix socket is
// made with mode 0600; a TCP socket is bound to the given address alone.
#pragma once

#include <memory>
#include <string>

#include "base/descriptor.hpp"
#include "base/status.hpp"
#include "collective/wire.hpp"
#include "cpu/waits.hpp"

namespace perseid::internal::collective {

using cpu::Clock;

// Waits until the descriptor is ready for `events` of poll(2). False: the deadline has passed.
bool poll_until(int descriptor, short events, Clock::time_point deadline);

// A socket that listens. The file of a Unix socket goes with it; one that a process left behind as
// it died is replaced.
class Listener {
 public:
  // TCP: port 0 is any free one.
  static Status open(const std::string& address, Listener* listener);
  Listener() = default;
  ~Listener();
  Listener(Listener&& other) noexcept { *this = std::move(other); }
  Listener& operator=(Listener&& other) noexcept;

  const Descriptor& socket() const { return socket_; }
  const std::string& address() const { return address_; }  // with the port
  // Closed where there is no connection to accept now.
  Descriptor accept() const;

 private:
  Descriptor socket_;
  std::string address_;
};

// Connects as soon as somebody listens at the address.
Status connect(const std::string& address, Clock::time_point deadline, Descriptor* socket);
// Whether the other end has closed the connection, or died, and everything was read.
bool has_ended(const Descriptor& socket);
// The address of this end of a TCP connection, with port 0; "" for a Unix socket.
std::string local_address(const Descriptor& socket);
// Whether the other end of a Unix socket is a process of this user; true for TCP.
bool is_same_user(const Descriptor& socket);

// Sends one frame, with a descriptor beside it where that is not -1; TCP leaves it behind. False:
// the other end is gone, or takes nothing until the deadline.
bool send_frame(const Descriptor& socket, const Frame& frame, Clock::time_point deadline,
                int descriptor = -1);

// What a read brought.
struct Received {
  bool open = true;  // false: the other end is gone
  std::vector<Frame> frames;
  std::vector<Descriptor> descriptors;
};
// Reads what is there, without waiting. Not open: also where it is no frame.
Received receive(const Descriptor& socket, FrameParser* parser);
// Reads no further than the end of one frame; no descriptors.
Received receive_one(const Descriptor& socket, FrameParser* parser);
// The next frame. False: none until the deadline, or the connection is broken.
bool receive_frame(const Descriptor& socket, Clock::time_point deadline, Frame* frame);

}  // namespace perseid::internal::collective
