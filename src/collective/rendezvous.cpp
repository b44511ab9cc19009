// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/rendezvous.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <list>
#include <optional>

namespace perseid::internal::collective {
namespace {

constexpr const char* kUnix = "unix:";
constexpr const char* kFolder = "/tmp";
// A connection that has not said who it is by then is closed.
constexpr std::chrono::seconds kHelloTime{5};
constexpr size_t kMostStrangers = 64;
// Where there are as many, one that has sent nothing for so long is dropped for the next.
constexpr std::chrono::milliseconds kSilence{100};

void refuse(const Descriptor& socket, const std::string& sentence) {
  send_frame(socket, {FrameType::kRefusal, 0, sentence},
             Clock::now() + std::chrono::milliseconds(100));
}

// Accepts one connection from each rank in (above, size).
class Reception {
 public:
  // `at_rendezvous`: they wait for an answer. One that dies meanwhile may come once more.
  Reception(const Listener& listener, const RankIdentity& identity, int32_t above,
            bool at_rendezvous)
      : listener_(listener), identity_(identity), above_(above), at_rendezvous_(at_rendezvous) {}

  Status collect(Clock::time_point deadline, std::vector<Descriptor>* sockets,
                 std::vector<std::string>* addresses) {
    while (!are_here(sockets)) {
      if (Clock::now() >= deadline) return nobody_came(*sockets);
      make_room();
      wait(deadline);
      if (has_room())
        if (Descriptor socket = listener_.accept(); socket.opened())
          strangers_.push_back({std::move(socket), {}, Clock::now()});
      for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
        Received received = receive_one(stranger->socket, &stranger->parser);
        if (!received.frames.empty()) {
          const std::optional<Hello> hello = welcome(*stranger, received.frames.front());
          if (hello) {
            const auto rank = static_cast<size_t>(hello->rank);
            if (Status status = check(*hello, *sockets); !status.ok()) {
              refuse(stranger->socket, status.sentence());
              return status;
            }
            (*sockets)[rank] = std::move(stranger->socket);
            (*addresses)[rank] = hello->address;
          }
        }
        const bool done = !received.open || !received.frames.empty() ||
                          Clock::now() >= stranger->came + kHelloTime;
        stranger = done ? strangers_.erase(stranger) : std::next(stranger);
      }
    }
    return {};
  }

 private:
  struct Stranger {
    Descriptor socket;
    FrameParser parser;
    Clock::time_point came;
  };

  bool is_here(const Descriptor& socket) const {
    return socket.opened() && !(at_rendezvous_ && has_ended(socket));
  }
  bool are_here(std::vector<Descriptor>* sockets) const {
    const auto first = sockets->begin() + above_ + 1;
    for (auto socket = first; socket != sockets->end(); ++socket)
      if (!is_here(*socket)) *socket = Descriptor();
    return std::all_of(first, sockets->end(), [](const auto& each) { return each.opened(); });
  }

  bool has_room() const { return strangers_.size() < kMostStrangers; }

  // Without room, drops the oldest stranger that has sent nothing.
  void make_room() {
    if (has_room()) return;
    const auto silent = std::find_if(strangers_.begin(), strangers_.end(),
                                     [](const Stranger& each) { return each.parser.empty(); });
    if (silent != strangers_.end() && Clock::now() >= silent->came + kSilence)
      strangers_.erase(silent);
  }

  void wait(Clock::time_point deadline) const {
    std::vector<pollfd> polled;
    if (has_room()) polled.push_back({listener_.socket().number(), POLLIN, 0});
    for (const Stranger& stranger : strangers_)
      polled.push_back({stranger.socket.number(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int64_t longest = has_room() ? 200 : 20;
    ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<int64_t>(left, 0, longest)));
  }

  // Who it is, if it may come in.
  std::optional<Hello> welcome(const Stranger& stranger, const Frame& frame) const {
    std::optional<Hello> hello;
    if (frame.type == FrameType::kHello && is_same_user(stranger.socket))
      hello = Hello::decode(frame.payload);
    if (hello && same_token(hello->token, identity_.token)) return hello;
    refuse(stranger.socket,
           "the token is not that of the group; set PERSEID_TOKEN to the same "
           "secret on all ranks");
    return {};
  }

  Status check(const Hello& hello, const std::vector<Descriptor>& sockets) const {
    if (hello.size != identity_.size)
      return Status::error(PERSEID_INVALID_ARGUMENT, "rank ", hello.rank, " expects ", hello.size,
                           " ranks, rank ", identity_.rank, " expects ", identity_.size,
                           "; start all with the same size");
    if (hello.rank <= above_ || is_here(sockets[static_cast<size_t>(hello.rank)]))
      return Status::error(PERSEID_INVALID_ARGUMENT, "two processes are rank ", hello.rank,
                           "; give each rank to one process");
    return {};
  }

  Status nobody_came(const std::vector<Descriptor>& sockets) const {
    std::string ranks;
    for (int32_t rank = above_ + 1; rank < identity_.size; ++rank)
      if (!sockets[static_cast<size_t>(rank)].opened())
        ranks += concatenate(ranks.empty() ? "" : ", ", rank);
    return Status::error(PERSEID_TIMEOUT, "these ranks did not come to the rendezvous before the ",
                         "deadline: ", ranks, "; were they started, with the same PERSEID_TOKEN?");
  }

  const Listener& listener_;
  const RankIdentity& identity_;
  const int32_t above_;
  const bool at_rendezvous_;
  std::list<Stranger> strangers_;
};

// Says who this is, and waits for an answer of `type`.
Status introduce(const Descriptor& socket, const Hello& hello, FrameType type,
                 Clock::time_point deadline, Frame* answer) {
  if (send_frame(socket, {FrameType::kHello, 0, hello.encode()}, deadline) &&
      receive_frame(socket, deadline, answer)) {
    if (answer->type == type) return {};
    if (answer->type == FrameType::kRefusal)
      return Status::error(PERSEID_INVALID_ARGUMENT, "the rendezvous refused rank ", hello.rank,
                           ": ", answer->payload);
  }
  return Status::error(Clock::now() >= deadline ? PERSEID_TIMEOUT : PERSEID_PEER_LOST,
                       "the rendezvous did not answer rank ", hello.rank,
                       "; has another rank failed to start?");
}

// Every rank listens, and all addresses are known.
Status connect_all(const RankIdentity& identity, const Listener& listener,
                   const std::vector<std::string>& addresses, Clock::time_point deadline,
                   std::vector<Descriptor>* sockets) {
  const Hello hello{identity.token, identity.rank, identity.size, ""};
  for (int32_t rank = 0; rank < identity.rank; ++rank) {
    Descriptor& socket = (*sockets)[static_cast<size_t>(rank)];
    Status status = connect(addresses[static_cast<size_t>(rank)], deadline, &socket);
    Frame answer;
    if (status.ok()) status = introduce(socket, hello, FrameType::kWelcome, deadline, &answer);
    if (!status.ok()) return status;
  }
  std::vector<std::string> ignored(addresses.size());
  Status status =
      Reception(listener, identity, identity.rank, false).collect(deadline, sockets, &ignored);
  for (int32_t rank = identity.rank + 1; status.ok() && rank < identity.size; ++rank)
    send_frame((*sockets)[static_cast<size_t>(rank)], {FrameType::kWelcome, 0, ""}, deadline);
  return status;
}

std::string random_token() {
  unsigned char bytes[16] = {};
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return "";
  std::string token;
  for (const unsigned char byte : bytes) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

// A folder of this user alone, for as long as it takes to meet.
class PrivateFolder {
 public:
  PrivateFolder() : made_(mkdtemp(path_) != nullptr) {}
  ~PrivateFolder() {
    if (made_) ::rmdir(path_);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  bool made() const { return made_; }
  const char* path() const { return path_; }

 private:
  char path_[32] = "/tmp/perseid-XXXXXX";
  bool made_;
};

Status callback_failed() {
  return Status::error(PERSEID_PEER_LOST, "the caller's all-gather failed");
}

// What tells hosts apart: an identifier that the kernel draws when it boots.
std::array<char, 40> boot_id() {
  std::array<char, 40> id{};
  const Descriptor file(open_file("/proc/sys/kernel/random/boot_id", O_RDONLY));
  [[maybe_unused]] const ssize_t got =
      file.opened() ? ::read(file.number(), id.data(), id.size() - 1) : 0;
  return id;
}

// Where sockets of ranks can be, unless `tcp_only`.
struct Host {
  std::array<char, 40> id;
  uint64_t device, inode, tcp_only;
};
Host this_host(bool tcp_only) {
  Host mine{boot_id(), 0, 0, tcp_only ? uint64_t{1} : 0};
  struct stat found {};
  if (mine.id[0] == '\0' || ::stat(kFolder, &found) != 0 || ::access(kFolder, W_OK) != 0)
    mine.tcp_only = 1;
  mine.device = found.st_dev;
  mine.inode = found.st_ino;
  return mine;
}

// Whether all ranks are on one host with one /tmp, where their sockets can be, and none asks for
// `tcp_only`. False: all_gather has failed.
bool find_hosts(int32_t size, const AllGather& all_gather, bool tcp_only, bool* one) {
  const Host mine = this_host(tcp_only);
  std::vector<Host> hosts(static_cast<size_t>(size));
  if (!all_gather(&mine, sizeof mine, hosts.data())) return false;
  *one = std::all_of(hosts.begin(), hosts.end(), [&](const Host& host) {
    return host.tcp_only == 0 && std::memcmp(&host, hosts.data(), sizeof host) == 0;
  });
  return true;
}

// Where ranks of other hosts reach this one.
std::string own_address() {
  const std::string host = host_of_environment();
  return host.find(':') == std::string::npos ? concatenate("tcp:", host, ":0")
                                             : concatenate("tcp:[", host, "]:0");
}

// `at`: where to listen; "": at a Unix socket.
Status meet_at(const std::string& at, int32_t rank, int32_t size, const AllGather& all_gather,
               Clock::time_point deadline, std::vector<Descriptor>* sockets) {
  struct Card {  // what goes through the callback
    char address[64] = {}, token[64] = {};
  };
  RankIdentity identity{rank, size, "", rank == 0 ? random_token() : ""};
  std::optional<PrivateFolder> folder;
  Listener listener;
  Status status;
  if (!at.empty()) {
    status = Listener::open(at, &listener);
  } else if (folder.emplace(); folder->made()) {
    status = Listener::open(concatenate(kUnix, folder->path(), "/rank"), &listener);
  } else {
    status = Status::error(PERSEID_IO_ERROR, "cannot make a folder like ", folder->path());
  }
  // A rank that has no address says so, lest the others wait for it.
  Card mine;
  std::memcpy(mine.address, listener.address().data(), listener.address().size());
  std::memcpy(mine.token, identity.token.data(), identity.token.size());
  std::vector<Card> cards(static_cast<size_t>(size));
  if (!all_gather(&mine, sizeof mine, cards.data())) return callback_failed();
  if (!status.ok()) return status;
  std::vector<std::string> addresses;
  for (const Card& card : cards) {
    addresses.emplace_back(card.address, strnlen(card.address, sizeof card.address));
    if (addresses.back().empty())
      return Status::error(
          PERSEID_IO_ERROR, "rank ", addresses.size() - 1,
          " has no address to be reached at; is its /tmp writable, or, on several ",
          "hosts, PERSEID_ADDRESS an address of its host?");
  }
  identity.token.assign(cards[0].token, strnlen(cards[0].token, sizeof cards[0].token));
  return connect_all(identity, listener, addresses, deadline, sockets);
}

// Ranks of one host go on by Unix sockets, which carry descriptors of memory.
Status leave_tcp(const RankIdentity& identity, Clock::time_point deadline,
                 std::vector<Descriptor>* sockets) {
  const AllGather all_gather = [&](const void* mine, size_t bytes, void* all) {
    const Frame own{FrameType::kMessage, 0, std::string(static_cast<const char*>(mine), bytes)};
    for (const Descriptor& socket : *sockets)
      if (socket.opened() && !send_frame(socket, own, deadline)) return false;
    for (size_t rank = 0; rank < sockets->size(); ++rank) {
      const Descriptor& socket = (*sockets)[rank];
      Frame frame = own;
      if (socket.opened() && !receive_frame(socket, deadline, &frame)) return false;
      if (frame.type != own.type || frame.payload.size() != bytes) return false;
      std::memcpy(static_cast<char*>(all) + rank * bytes, frame.payload.data(), bytes);
    }
    return true;
  };
  bool one = false;
  const bool tcp_only = names_host() || !shares_memory_of_environment();
  if (!find_hosts(identity.size, all_gather, tcp_only, &one))
    return Status::error(PERSEID_PEER_LOST, "a rank was lost, or silent, at the rendezvous");
  if (!one) return {};
  std::vector<Descriptor> local(sockets->size());
  Status status = meet_at("", identity.rank, identity.size, all_gather, deadline, &local);
  if (status.ok()) *sockets = std::move(local);
  return status;
}

}  // namespace

std::string host_id_of_environment() {
  if (const char* const value = std::getenv("PERSEID_HOSTID"); value != nullptr && *value != 0)
    return value;
  const Host host = this_host(!shares_memory_of_environment());
  if (host.tcp_only != 0) return "";
  return concatenate(host.id.data(), " ", host.device, " ", host.inode);
}

Status meet_on_host(int32_t rank, int32_t size, const AllGather& all_gather,
                    Clock::time_point deadline, std::vector<Descriptor>* sockets) {
  sockets->clear();
  sockets->resize(static_cast<size_t>(size));
  return meet_at("", rank, size, all_gather, deadline, sockets);
}

Status meet(const RankIdentity& identity, Clock::time_point deadline,
            std::vector<Descriptor>* sockets) {
  sockets->clear();
  sockets->resize(static_cast<size_t>(identity.size));
  if (identity.size == 1) return {};
  const bool is_unix = identity.rendezvous.starts_with(kUnix);
  Listener listener;
  std::vector<std::string> addresses(static_cast<size_t>(identity.size));
  if (identity.rank == 0) {
    if (Status status = Listener::open(identity.rendezvous, &listener); !status.ok()) return status;
    std::vector<Descriptor> waiting(static_cast<size_t>(identity.size));
    Status status = Reception(listener, identity, 0, true).collect(deadline, &waiting, &addresses);
    addresses[0] = listener.address();
    const std::string all = encode_addresses(addresses);
    for (size_t rank = 1; rank < waiting.size(); ++rank) {
      if (!waiting[rank].opened()) continue;
      if (status.ok()) {
        send_frame(waiting[rank], {FrameType::kAddresses, 0, all}, deadline);
      } else {
        refuse(waiting[rank], status.sentence());
      }
    }
    if (status.ok()) status = connect_all(identity, listener, addresses, deadline, sockets);
    return status.ok() && !is_unix ? leave_tcp(identity, deadline, sockets) : status;
  }
  Descriptor rendezvous;
  Status status;
  if (is_unix)
    status = Listener::open(concatenate(identity.rendezvous, ".", identity.rank), &listener);
  if (status.ok()) status = connect(identity.rendezvous, deadline, &rendezvous);
  if (status.ok() && !is_unix) status = Listener::open(local_address(rendezvous), &listener);
  Frame answer;
  if (status.ok())
    status =
        introduce(rendezvous, {identity.token, identity.rank, identity.size, listener.address()},
                  FrameType::kAddresses, deadline, &answer);
  if (!status.ok()) return status;
  const auto all = decode_addresses(answer.payload, identity.size);
  if (!all)
    return Status::error(PERSEID_PEER_LOST, "the rendezvous answered rank ", identity.rank,
                         " with something else than ", identity.size, " addresses");
  status = connect_all(identity, listener, *all, deadline, sockets);
  return status.ok() && !is_unix ? leave_tcp(identity, deadline, sockets) : status;
}

Status meet(int32_t rank, int32_t size, const std::string& address, const AllGather& all_gather,
            Clock::time_point deadline, std::vector<Descriptor>* sockets) {
  sockets->clear();
  sockets->resize(static_cast<size_t>(size));
  std::string at = address;
  if (at.empty()) {
    bool one = false;
    if (!find_hosts(size, all_gather, names_host(), &one)) return callback_failed();
    if (!one) at = own_address();
  }
  return meet_at(at, rank, size, all_gather, deadline, sockets);
}

}  // namespace perseid::internal::collective
