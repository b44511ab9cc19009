// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

namespace perseid::internal::collective {
namespace {

constexpr const char* kUnix = "unix:";
constexpr const char* kTcp = "tcp:";
constexpr int kBacklog = 128;
constexpr std::chrono::milliseconds kRetry{5};
// How long others may take to make a socket in the same folder.
constexpr std::chrono::seconds kOpening{1};

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

std::string reason() { return std::strerror(errno); }

Status parse_unix(const std::string& text, Address* address) {
  const std::string path = text.substr(std::strlen(kUnix));
  sockaddr_un name{};
  if (path.empty() || path.size() >= sizeof name.sun_path)
    return Status::error(PERSEID_INVALID_ARGUMENT, "the rendezvous \"", text, "\" has a path of ",
                         path.size(), " bytes, expected 1 to ", sizeof name.sun_path - 1,
                         "; use a shorter path");
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  std::memcpy(&address->storage, &name, sizeof name);
  address->size = sizeof name;
  return {};
}

Status parse_tcp(const std::string& text, Address* address) {
  const std::string rest = text.substr(std::strlen(kTcp));
  const size_t colon = rest.rfind(':');
  std::string host = rest.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (host.empty())
    return Status::error(PERSEID_INVALID_ARGUMENT, "the rendezvous is \"", text,
                         "\", expected tcp:HOST:PORT");
  const addrinfo wanted{.ai_flags = AI_NUMERICSERV,
                        .ai_family = AF_UNSPEC,
                        .ai_socktype = SOCK_STREAM,
                        .ai_protocol = 0,
                        .ai_addrlen = 0,
                        .ai_addr = nullptr,
                        .ai_canonname = nullptr,
                        .ai_next = nullptr};
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), rest.substr(colon + 1).c_str(), &wanted, &found);
      error != 0)
    return Status::error(PERSEID_INVALID_ARGUMENT, "the rendezvous \"", text,
                         "\" has no address: ", gai_strerror(error),
                         "; expected tcp:HOST:PORT with a number as port");
  std::memcpy(&address->storage, found->ai_addr, found->ai_addrlen);
  address->size = found->ai_addrlen;
  freeaddrinfo(found);
  return {};
}

Status parse(const std::string& text, Address* address) {
  if (text.starts_with(kUnix)) return parse_unix(text, address);
  if (text.starts_with(kTcp)) return parse_tcp(text, address);
  return Status::error(PERSEID_INVALID_ARGUMENT, "the rendezvous is \"", text,
                       "\", expected unix:PATH or tcp:HOST:PORT, or mpi:openmpi or mpi:mpich");
}

std::string text_of(const sockaddr_storage& storage, bool with_port) {
  char host[INET6_ADDRSTRLEN] = "";
  uint16_t port = 0;
  if (storage.ss_family == AF_INET) {
    sockaddr_in name{};
    std::memcpy(&name, &storage, sizeof name);
    inet_ntop(AF_INET, &name.sin_addr, host, sizeof host);
    port = ntohs(name.sin_port);
    return concatenate(kTcp, host, ":", with_port ? port : uint16_t{0});
  }
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 name{};
    std::memcpy(&name, &storage, sizeof name);
    inet_ntop(AF_INET6, &name.sin6_addr, host, sizeof host);
    port = ntohs(name.sin6_port);
    return concatenate(kTcp, "[", host, "]:", with_port ? port : uint16_t{0});
  }
  return "";
}

std::string own_address(const Descriptor& socket, bool with_port) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(socket.number(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "";
  return text_of(storage, with_port);
}

Descriptor make_socket(const Address& address) {
  return Descriptor(above_standard_streams(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
}

// A connection to a host that is gone ends within seconds.
void set_options(const Descriptor& socket) {
  const int on = 1, seconds = 1, probes = 3;
  const int number = socket.number();
  setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // fails for Unix sockets
  setsockopt(number, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(number, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  setsockopt(number, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  setsockopt(number, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

// One process at a time makes a socket in a folder, until it listens: what refuses connections
// meanwhile was left over.
class OpeningLock {
 public:
  explicit OpeningLock(const std::string& path)
      : folder_(open_file(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY)) {
    const Clock::time_point end = Clock::now() + kOpening;
    while (folder_.opened() && !held_) {
      held_ = ::flock(folder_.number(), LOCK_EX | LOCK_NB) == 0;
      if (held_ || (errno != EWOULDBLOCK && errno != EINTR) || Clock::now() >= end) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~OpeningLock() {
    // A process that was forked meanwhile has the descriptor, too.
    if (held_) ::flock(folder_.number(), LOCK_UN);
  }
  OpeningLock(const OpeningLock&) = delete;
  OpeningLock& operator=(const OpeningLock&) = delete;
  bool held() const { return held_; }

 private:
  static std::string folder_of(const std::string& path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash + 1);
  }

  const Descriptor folder_;
  bool held_ = false;
};

// Whether a file is the socket of a process of this user that has died.
bool is_left_over(const char* path, const Address& where) {
  struct stat found {};
  if (::lstat(path, &found) != 0 || !S_ISSOCK(found.st_mode) || found.st_uid != ::geteuid())
    return false;
  const Descriptor probe = make_socket(where);
  return probe.opened() && ::connect(probe.number(), where.get(), where.size) != 0 &&
         errno == ECONNREFUSED;
}

// Errors as bind(2) gives them.
bool bind_unix(const Descriptor& socket, const char* path, const Address& where, bool alone) {
  if (::bind(socket.number(), where.get(), where.size) == 0) return true;
  if (errno != EADDRINUSE) return false;
  if (alone && is_left_over(path, where) && ::unlink(path) == 0)
    return ::bind(socket.number(), where.get(), where.size) == 0;
  errno = EADDRINUSE;
  return false;
}

}  // namespace

bool poll_until(int descriptor, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{descriptor, events, 0};
    const auto limit = static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
    const int ready = ::poll(&polled, 1, limit);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (left <= 0) return false;
  }
}

Status Listener::open(const std::string& address, Listener* listener) {
  Address where;
  if (Status status = parse(address, &where); !status.ok()) return status;
  Listener opened;
  opened.socket_ = make_socket(where);
  const int number = opened.socket_.number();
  const bool is_unix = address.starts_with(kUnix);
  const int on = 1;
  std::optional<OpeningLock> lock;
  bool ready = opened.socket_.opened();
  if (ready && is_unix) {
    const std::string path = address.substr(std::strlen(kUnix));
    lock.emplace(path);
    // The mode of a Unix socket's file is that of the socket before it is bound.
    ready = ::fchmod(number, S_IRUSR | S_IWUSR) == 0 &&
            bind_unix(opened.socket_, path.c_str(), where, lock->held());
  } else if (ready) {
    ready = setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
            ::bind(number, where.get(), where.size) == 0;
  }
  if (!ready)
    return Status::error(
        PERSEID_IO_ERROR, "cannot listen at the rendezvous \"", address, "\": ", reason(),
        errno == EADDRINUSE ? "; is another group there, or a file left over?" : "");
  opened.address_ = is_unix ? address : own_address(opened.socket_, true);
  if (::listen(number, kBacklog) != 0)
    return Status::error(PERSEID_IO_ERROR, "cannot listen at the rendezvous \"", address,
                         "\": ", reason());
  *listener = std::move(opened);
  return {};
}

Listener::~Listener() {
  if (address_.starts_with(kUnix)) ::unlink(address_.c_str() + std::strlen(kUnix));
}

Listener& Listener::operator=(Listener&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(address_, other.address_);
  return *this;
}

Descriptor Listener::accept() const {
  Descriptor accepted(above_standard_streams(
      ::accept4(socket_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  if (accepted.opened()) set_options(accepted);
  return accepted;
}

Status connect(const std::string& address, Clock::time_point deadline, Descriptor* socket) {
  Address where;
  if (Status status = parse(address, &where); !status.ok()) return status;
  for (;;) {
    Descriptor made = make_socket(where);
    if (!made.opened()) return Status::error(PERSEID_IO_ERROR, "cannot make a socket: ", reason());
    int error = ::connect(made.number(), where.get(), where.size) == 0 ? 0 : errno;
    if (error == EINPROGRESS && poll_until(made.number(), POLLOUT, deadline)) {
      socklen_t size = sizeof error;
      getsockopt(made.number(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
      set_options(made);
      *socket = std::move(made);
      return {};
    }
    // Nobody listens yet.
    const bool early = error == ENOENT || error == ECONNREFUSED || error == EAGAIN ||
                       error == EINTR || error == ECONNRESET;
    if (!early || Clock::now() + kRetry >= deadline)
      return Status::error(early || error == EINPROGRESS ? PERSEID_TIMEOUT : PERSEID_IO_ERROR,
                           "cannot connect to \"", address, "\": ", std::strerror(error),
                           early ? " until the deadline; was rank 0 started?" : "");
    std::this_thread::sleep_for(kRetry);
  }
}

bool has_ended(const Descriptor& socket) {
  char byte;
  return ::recv(socket.number(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

std::string local_address(const Descriptor& socket) { return own_address(socket, false); }

bool is_same_user(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(socket.number(), reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return false;
  if (storage.ss_family != AF_UNIX) return true;
  return getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

bool send_frame(const Descriptor& socket, const Frame& frame, Clock::time_point deadline,
                int descriptor) {
  const std::string bytes = encode(frame);
  for (size_t sent = 0; sent < bytes.size();) {
    iovec part{const_cast<char*>(bytes.data()) + sent, bytes.size() - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
    if (descriptor >= 0 && sent == 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof descriptor);
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    const ssize_t wrote = ::sendmsg(socket.number(), &message, MSG_NOSIGNAL);
    if (wrote >= 0) {
      sent += static_cast<size_t>(wrote);
    } else if (errno == EAGAIN) {
      if (!poll_until(socket.number(), POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

Received receive(const Descriptor& socket, FrameParser* parser) {
  Received received;
  for (;;) {
    std::byte bytes[4096];
    constexpr size_t kMostDescriptors = 8;
    alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
    iovec part{bytes, sizeof bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket.number(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return received;
    if (got <= 0) {
      received.open = false;
      return received;
    }
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(header) + i * sizeof number, sizeof number);
        received.descriptors.emplace_back(above_standard_streams(number));
      }
    }
    if (!parser->feed({bytes, static_cast<size_t>(got)}, &received.frames)) {
      received.open = false;
      return received;
    }
  }
}

Received receive_one(const Descriptor& socket, FrameParser* parser) {
  Received received;
  while (received.frames.empty()) {
    std::byte bytes[4096];
    const ssize_t got =
        ::recv(socket.number(), bytes, std::min(sizeof bytes, parser->missing()), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return received;
    received.open = got > 0 && parser->feed({bytes, static_cast<size_t>(got)}, &received.frames);
    if (!received.open) break;
  }
  return received;
}

bool receive_frame(const Descriptor& socket, Clock::time_point deadline, Frame* frame) {
  FrameParser parser;
  while (poll_until(socket.number(), POLLIN, deadline)) {
    Received received = receive_one(socket, &parser);
    if (!received.frames.empty()) {
      *frame = std::move(received.frames.front());
      return true;
    }
    if (!received.open) return false;
  }
  return false;
}

}  // namespace perseid::internal::collective
