// Which web pages may use the server. Every page that a visitor opens can send requests to servers
// of the visitor's own machine and network.
#pragma once

#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle::serve {

/// An origin such as "https://a.example:8000". Errors: kInvalidArgument.
Status check_origin(const std::string& origin);

class OriginPolicy {
 public:
  /// `listens_on`: an IP address or "localhost". `allowed_origin`: of another page; empty: none.
  OriginPolicy(std::string listens_on, std::string allowed_origin);

  /// Whether a request with this Host header may be answered. A page can give its own name the
  /// address of this server (DNS rebinding); Host then shows that name. A server on loopback
  /// has known names only. Others have names that the server cannot know, and answer to all.
  bool may_use(std::string_view host) const;
  /// Whether a request with this Origin header may be answered: no page sent it, or the server's
  /// own page, under a name that is no other page's, or the allowed one.
  bool may_send(std::string_view origin, std::string_view host) const;

 private:
  bool knows(std::string_view host) const;

  const std::string listens_on_, allowed_origin_;
  const bool on_loopback_;
};

}  // namespace moracle::serve
