#include "base/text.h"
#include "parallel/connect.h"

namespace moracle {

Error silent_ranks(const std::vector<int64_t>& ranks, double seconds) {
  return {ErrorKind::kIo, "", str(ranks.size() == 1 ? "rank " : "ranks ", join(ranks)),
          str("an answer within ", seconds, " s (timeout_seconds)"), "there is none"};
}

Error ended_rank(int64_t rank, const std::string& how) {
  return {ErrorKind::kIo, "", str("rank ", rank), "to take part until the end",
          "it has ended: " + how};
}

Error changed_message(int64_t rank) {
  return {ErrorKind::kIo, "", str("rank ", rank), "messages that arrive unchanged",
          "the checksum of one is wrong"};
}

Error aborted_rank(int64_t rank, const std::string& reason) {
  return {ErrorKind::kIo, "", str("rank ", rank), "to take part until the end",
          "it stopped: " + reason};
}

}  // namespace moracle
