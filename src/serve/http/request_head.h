// The header of a request: what the server needs of it, and whether it is well-formed.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include "serve/http/http.h"

namespace moracle::serve {

using BeastRequest = boost::beast::http::request<boost::beast::http::string_body>;

/// Without a body. A target in absolute form, "http://host/path", gives path and host.
HttpRequest read_head(const BeastRequest& message);

/// Why the request must not be answered (RFC 9112): status 400 for HTTP/1.1 without exactly one
/// Host, 501 for a Transfer-Encoding other than chunked. Empty: it may.
std::optional<HttpReply> wrong_head(const BeastRequest& message);

/// An error in OpenAI's form, for a request that the server's interface does not see.
HttpReply refusal(int status, const std::string& message);

}  // namespace moracle::serve
