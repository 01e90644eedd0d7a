// One line of JSON for each request.
#pragma once

#include <chrono>
#include <functional>

#include "serve/api/api_error.h"

namespace moracle::serve {

struct LogOptions {
  std::function<void(const std::string& line)> write;  ///< null: no log; must be thread-safe
  bool has_contents = false;                           ///< also bodies of requests and replies
};

/// Writes the line of a request that is answered at once.
void log_request(const LogOptions& options, const HttpRequest& request, const HttpReply& reply);

/// An exchange that writes a line at the end of its reply, or when the client disconnects.
std::shared_ptr<Exchange> make_logged(const LogOptions& options, const HttpRequest& request,
                                      std::shared_ptr<Exchange> exchange);

}  // namespace moracle::serve
