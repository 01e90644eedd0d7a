#include "parallel/tcp/tcp_connect.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle::tcp {
namespace {

constexpr uint64_t kMagic = 0x6d6f7261636c6531;  // "moracle1"

struct Hello {
  uint64_t magic = kMagic;
  int64_t rank = 0, size = 0;
  Address listens;
};

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span<T>(&value, 1));
}

Error wrong_hello(const Hello& hello, const RankOptions& options) {
  return {ErrorKind::kInvalidArgument, "", "tcp",
          str("ranks of one job of ", options.size, " ranks, each once"),
          hello.magic != kMagic ? std::string("another program connected")
                                : str("rank ", hello.rank, " of ", hello.size, " connected")};
}

// Takes connections until every rank of `wanted` is there.
Status accept_ranks(const Socket& listener, const RankOptions& options, std::vector<int64_t> wanted,
                    const Deadline& deadline, std::vector<Socket>& sockets,
                    std::vector<Address>* addresses) {
  while (!wanted.empty()) {
    Result<Socket> socket = accept_one(listener, deadline);
    if (!socket)
      return deadline.passed() ? silent_ranks(wanted, deadline.seconds()) : socket.error();
    Hello hello;
    MORACLE_CHECK(receive_all(*socket, bytes_of(hello), deadline));
    const auto at = std::find(wanted.begin(), wanted.end(), hello.rank);
    if (hello.magic != kMagic || hello.size != options.size || at == wanted.end())
      return wrong_hello(hello, options);
    if (addresses != nullptr) {
      MORACLE_TRY(Address address, peer_of(*socket));
      address.port = hello.listens.port;
      (*addresses)[hello.rank] = address;
    }
    wanted.erase(at);
    sockets[hello.rank] = *std::move(socket);
  }
  return {};
}

std::vector<int64_t> ranks_from(int64_t first, int64_t size) {
  std::vector<int64_t> ranks;
  for (int64_t r = first; r < size; ++r) ranks.push_back(r);
  return ranks;
}

}  // namespace

Result<std::vector<Socket>> connect_all(const RankOptions& options) {
  const Deadline deadline(options.timeout_seconds);
  const int64_t rank = options.rank, size = options.size;
  if (options.port < 1 || options.port > 65535 || options.address.empty()) {
    return Error{ErrorKind::kInvalidArgument, "", "tcp",
                 "address and port of rank 0 (MASTER_ADDR and MASTER_PORT)",
                 str("they are '", options.address, "' and ", options.port)};
  }
  std::vector<Socket> sockets(size);
  std::vector<Address> addresses(size);
  const std::span<std::byte> table = std::as_writable_bytes(std::span(addresses));
  MORACLE_TRY(const Socket listener, listen_at(rank == 0 ? options.port : 0));
  if (rank == 0) {
    MORACLE_CHECK(
        accept_ranks(listener, options, ranks_from(1, size), deadline, sockets, &addresses));
    for (int64_t r = 1; r < size; ++r) MORACLE_CHECK(send_all(sockets[r], table, deadline));
    return sockets;
  }
  MORACLE_TRY(const Address own, address_of(listener));
  Hello hello{kMagic, rank, size, own};
  MORACLE_TRY(const Address first, resolve(options.address, options.port));
  MORACLE_TRY(sockets[0], connect_to(first, deadline));
  MORACLE_CHECK(send_all(sockets[0], bytes_of(hello), deadline));
  if (Status told = receive_all(sockets[0], table, deadline); !told) {
    Error error = told.error();
    error.place = "rank 0";
    error.need = "all ranks to connect";
    return error;
  }
  for (int64_t r = 1; r < rank; ++r) {
    MORACLE_TRY(sockets[r], connect_to(addresses[r], deadline));
    MORACLE_CHECK(send_all(sockets[r], bytes_of(hello), deadline));
  }
  MORACLE_CHECK(
      accept_ranks(listener, options, ranks_from(rank + 1, size), deadline, sockets, nullptr));
  return sockets;
}

}  // namespace moracle::tcp
