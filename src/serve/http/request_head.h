// Reads and validates request headers.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include "serve/http/http.h"

namespace moracle::serve {

using BeastRequest = boost::beast::http::request<boost::beast::http::string_body>;

/// Reads a request without its body. An absolute target, "http://host/path", gives path and host.
HttpRequest read_head(const BeastRequest& message);

/// Rejection of a malformed header (RFC 9112): status 400 for HTTP/1.1 without exactly one Host,
/// 501 for a Transfer-Encoding other than chunked. Empty: valid.
std::optional<HttpReply> wrong_head(const BeastRequest& message);

/// Error reply in OpenAI's format, for a request that does not reach the API.
HttpReply refusal(int status, const std::string& message);

}  // namespace moracle::serve
