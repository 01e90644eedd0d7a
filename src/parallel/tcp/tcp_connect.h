// Rendezvous over tcp: rank 0 listens at an address that all ranks know, collects the addresses of
// the others and sends the table to all. Then each rank connects to the ranks below it.
#pragma once

#include <vector>

#include "parallel/tcp/tcp_message.h"

namespace moracle::tcp {

/// The link with each rank; that of the own rank is not open. Each rank listens only at the address
/// by which rank 0 is reached, and only until all ranks are there. Errors: ranks that did not come
/// before the timeout, by number; a refusal by another rank; options.
Result<std::vector<Link>> connect_all(const RankOptions& options);

}  // namespace moracle::tcp
