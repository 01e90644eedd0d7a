// The listening side of the handshake. Any process may connect: one that is not a rank of the job
// is dropped, and no connection delays another.
#pragma once

#include <vector>

#include "parallel/tcp/tcp_hello.h"

namespace moracle::tcp {

/// Takes connections until every rank from `first` on is in `links`. `addresses`: where they
/// listen; may be null. Errors: ranks that did not come before the deadline, by number, and why the
/// last connection was refused.
Status accept_ranks(const Socket& listener, const RankOptions& options, int64_t first,
                    const Deadline& deadline, std::vector<Link>& links,
                    std::vector<Address>* addresses);

}  // namespace moracle::tcp
