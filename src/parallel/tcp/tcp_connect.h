// How ranks find each other over tcp: rank 0 listens at an address that all know, collects where
// the others listen, and tells everybody. Then each rank connects to those below it.
#pragma once

#include "parallel/tcp/tcp_sockets.h"

namespace moracle::tcp {

/// The connection to each rank; that of the own rank is not open. Errors: ranks that did not come
/// before the timeout, by number; a job of another size; a process that is no rank of this job.
Result<std::vector<Socket>> connect_all(const RankOptions& options);

}  // namespace moracle::tcp
