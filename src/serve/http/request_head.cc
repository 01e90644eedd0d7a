#ifdef MORACLE_WITH_HTTP
#include "serve/http/request_head.h"

#include "base/text.h"

namespace moracle::serve {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

std::string text(beast::string_view view) {
  return {view.data(), view.size()};
}

// Splits "http://host/path" into path and host. This host overrides the Host header.
void split_absolute_form(HttpRequest& request) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    const std::string_view path = request.path;
    if (path.size() < scheme.size() ||
        !beast::iequals({path.data(), scheme.size()}, {scheme.data(), scheme.size()}))
      continue;
    const std::string_view rest = path.substr(scheme.size());
    const size_t slash = std::min(rest.find('/'), rest.size());
    request.host = rest.substr(0, slash);
    request.path = slash == rest.size() ? "/" : std::string(rest.substr(slash));
    return;
  }
}

}  // namespace

HttpRequest read_head(const BeastRequest& message) {
  HttpRequest request;
  request.method = text(message.method_string());
  request.path = text(message.target());
  if (const size_t query = request.path.find('?'); query != std::string::npos) {
    request.query = request.path.substr(query + 1);
    request.path.resize(query);
  }
  request.host = text(message[http::field::host]);
  split_absolute_form(request);
  request.origin = text(message[http::field::origin]);
  request.authorization = text(message[http::field::authorization]);
  request.api_key = text(message["x-api-key"]);
  request.encoding = text(message[http::field::content_encoding]);
  return request;
}

std::optional<HttpReply> wrong_head(const BeastRequest& message) {
  const size_t hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() >= 11))
    return refusal(400, str("HTTP/1.1 needs one Host header; this request has ", hosts));
  const size_t encodings = message.count(http::field::transfer_encoding);
  if (encodings == 0) return {};
  if (message.version() < 11) return refusal(400, "HTTP/1.0 has no Transfer-Encoding");
  if (encodings > 1 || !beast::iequals(message[http::field::transfer_encoding], "chunked"))
    return refusal(501, "the only Transfer-Encoding that this server reads is chunked");
  return {};
}

HttpReply refusal(int status, const std::string& message) {
  const char* const type = status < 500    ? "invalid_request_error"
                           : status == 503 ? "service_unavailable_error"
                                           : "server_error";
  HttpReply reply{.status = status,
                  .body = str(R"({"error":{"message":")", message, R"(","type":")", type,
                              R"(","param":null,"code":null}})")};
  if (status == 503) reply.headers.push_back({"Retry-After", "1"});
  return reply;
}

}  // namespace moracle::serve
#endif
