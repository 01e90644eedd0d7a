#include "parallel/tcp/tcp_connect.h"

#include "base/text.h"
#include "base/try.h"
#include "parallel/tcp/tcp_accept.h"
#include "parallel/tcp/tcp_hello.h"

namespace moracle::tcp {
namespace {

constexpr size_t kShortestSecret = 16;

Status check_options(const RankOptions& options) {
  if (options.port < 1 || options.port > 65535 || options.address.empty()) {
    return Error{ErrorKind::kInvalidArgument, "", "tcp",
                 "address and port of rank 0 (MASTER_ADDR and MASTER_PORT)",
                 str("they are '", options.address, "' and ", options.port)};
  }
  if (options.secret.empty() || options.secret.size() >= kShortestSecret) return {};
  return Error{ErrorKind::kInvalidArgument, "", "secret",
               str("at least ", kShortestSecret, " bytes, or none"),
               str("it has ", options.secret.size())};
}

// Connects to rank `to`, with retries while it drops the connection.
Result<Link> meet(const Address& address, Socket socket, const RankOptions& options, int64_t to,
                  int port, const Deadline& deadline) {
  for (;;) {
    MORACLE_TRY(Link link, say_hello(std::move(socket), options, to, port, deadline));
    if (link.socket.open()) return link;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    MORACLE_TRY(socket, connect_to(address, deadline));
  }
}

Error without_rank_0(Error error) {
  error.place = "rank 0";
  error.need = "all ranks to connect";
  return error;
}

// Sends the table of addresses from rank 0 to all.
Status begin(const Address& address, const RankOptions& options, const Deadline& deadline,
             std::vector<Link>& links) {
  MORACLE_TRY(const Socket listener, listen_at(address));
  std::vector<Address> addresses(options.size);
  MORACLE_CHECK(accept_ranks(listener, options, 1, deadline, links, &addresses));
  for (int64_t r = 1; r < options.size; ++r)
    MORACLE_CHECK(
        send_message(links[r], Kind::kData, std::as_bytes(std::span(addresses)), deadline));
  return {};
}

Status join(const Address& address, const RankOptions& options, const Deadline& deadline,
            std::vector<Link>& links) {
  MORACLE_TRY(Socket first, connect_to(address, deadline));
  // Listen only where rank 0 is reached.
  MORACLE_TRY(const Address here, address_of(first));
  MORACLE_TRY(const Socket listener, listen_at({here.ip, 0}));
  MORACLE_TRY(const Address own, address_of(listener));
  MORACLE_TRY(links[0], meet(address, std::move(first), options, 0, own.port, deadline));
  std::vector<Address> addresses(options.size);
  const Status told = receive_message(links[0], Kind::kData,
                                      std::as_writable_bytes(std::span(addresses)), deadline);
  if (!told) return without_rank_0(told.error());
  for (int64_t r = 1; r < options.rank; ++r) {
    MORACLE_TRY(Socket socket, connect_to(addresses[r], deadline));
    MORACLE_TRY(links[r], meet(addresses[r], std::move(socket), options, r, own.port, deadline));
  }
  return accept_ranks(listener, options, options.rank + 1, deadline, links, nullptr);
}

}  // namespace

Result<std::vector<Link>> connect_all(const RankOptions& options) {
  MORACLE_CHECK(check_options(options));
  MORACLE_CHECK(start_crypto());
  const Deadline deadline(options.timeout_seconds);
  MORACLE_TRY(const Address address, resolve(options.address, options.port));
  std::vector<Link> links(options.size);
  MORACLE_CHECK(options.rank == 0 ? begin(address, options, deadline, links)
                                  : join(address, options, deadline, links));
  return links;
}

}  // namespace moracle::tcp
