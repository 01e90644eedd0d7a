// Protects the server from foreign web pages: a page in the user's browser can send requests to
// servers on the user's machine and network.
#pragma once

#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle::serve {

/// Checks an origin such as "https://a.example:8000". Errors: kInvalidArgument.
Status check_origin(const std::string& origin);

class OriginPolicy {
 public:
  /// `listens_on`: an IP address or "localhost". `allowed_origin`: a foreign page's origin; empty:
  /// none.
  OriginPolicy(std::string listens_on, std::string allowed_origin);

  /// True if the Host header is acceptable. Against DNS rebinding, a server on loopback accepts
  /// only its own names: a page can point its name at this server, but Host then shows that name.
  /// Other servers cannot know their names and accept every Host.
  bool may_use(std::string_view host) const;
  /// True if the Origin header is acceptable: absent (no browser page), the server's own page under
  /// a name that no foreign page can have, or the allowed origin.
  bool may_send(std::string_view origin, std::string_view host) const;

 private:
  bool knows(std::string_view host) const;

  const std::string listens_on_, allowed_origin_;
  const bool on_loopback_;
};

}  // namespace moracle::serve
