// --routing-statistics: writes token counts per expert to a file.
#pragma once

#include <optional>
#include <string>

#include "caches/locked_file.h"
#include "command.h"
#include "ranks/ranks.h"

namespace moracle::cli {

inline constexpr const char* kRoutingHelp =
    "File to write: how many tokens chose each expert, for --placement";

class RoutingFile {
 public:
  /// Empty path: writes nothing.
  explicit RoutingFile(std::string path) : path_(std::move(path)) {}
  /// Checks that the file is writable before the work, and enables the model's counters. Call it
  /// after the ranks are connected: only rank 0 counts and writes.
  Status begin(ModelOptions& options) {
    if (path_.empty()) return {};
    if (options.spread == Spread::kDispatched && options.parallel.ep_size > 1) {
      return Error{ErrorKind::kInvalidArgument, "", "--routing-statistics",
                   "mode=replicated, in which each rank counts all tokens",
                   "it is mode=dispatched"};
    }
    if (!is_first_rank()) return {};
    Result<LockedFile> file = LockedFile::open(path_, interrupted, LockedFile::Stream::kWrite);
    if (!file) return file.error();
    file_.emplace(std::move(*file));
    options.count_routing = true;
    return {};
  }
  Status write(const Model& model) {
    if (!file_) return {};
    const Result<RoutingStatistics> statistics = model.routing_statistics();
    if (!statistics) return statistics.error();
    return file_->replace(statistics->json() + "\n");
  }

 private:
  std::string path_;
  std::optional<LockedFile> file_;
};

}  // namespace moracle::cli
