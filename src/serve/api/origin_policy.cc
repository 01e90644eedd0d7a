#include "serve/api/origin_policy.h"

#include <arpa/inet.h>
#include <strings.h>

#include "base/printable.h"

namespace moracle::serve {
namespace {

// Strips port and brackets: "[::1]:8000" becomes "::1".
std::string name_of(std::string_view host) {
  if (host.starts_with('[')) return std::string(host.substr(1, host.find(']') - 1));
  return std::string(host.substr(0, host.find(':')));
}

std::string_view without_scheme(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == origin.npos ? std::string_view() : origin.substr(at + 3);
}

bool is_address(const std::string& name) {
  in6_addr bytes;
  return inet_pton(AF_INET, name.c_str(), &bytes) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &bytes) == 1;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

bool is_same_name(const std::string& left, const std::string& right) {
  return strcasecmp(left.c_str(), right.c_str()) == 0;
}

}  // namespace

Status check_origin(const std::string& origin) {
  const std::string_view host = without_scheme(origin);
  const bool has_scheme = origin.starts_with("http://") || origin.starts_with("https://");
  if (has_scheme && !host.empty() && host.find_first_of("/?#@ \r\n\t") == host.npos) return {};
  return Error{ErrorKind::kInvalidArgument, "", "allow_origin",
               "the origin of a page, such as https://a.example:8000", "it is " + quote(origin)};
}

OriginPolicy::OriginPolicy(std::string listens_on, std::string allowed_origin)
    : listens_on_(std::move(listens_on)),
      allowed_origin_(std::move(allowed_origin)),
      on_loopback_(is_loopback(listens_on_)) {}

// No foreign page can have this name.
bool OriginPolicy::knows(std::string_view host) const {
  const std::string name = name_of(host);
  for (const std::string& own : {listens_on_, std::string("localhost"), std::string("127.0.0.1"),
                                 std::string("::1"), name_of(without_scheme(allowed_origin_))}) {
    if (!own.empty() && is_same_name(name, own)) return true;
  }
  return !on_loopback_ && is_address(name);
}

// Accept a missing Host: browsers always send one.
bool OriginPolicy::may_use(std::string_view host) const {
  return host.empty() || !on_loopback_ || knows(host);
}

bool OriginPolicy::may_send(std::string_view origin, std::string_view host) const {
  if (origin.empty() || origin == allowed_origin_) return true;
  return knows(host) && without_scheme(origin) == host;
}

}  // namespace moracle::serve
