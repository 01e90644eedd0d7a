// A build without Boost.Beast.
#ifndef MORACLE_WITH_HTTP
#include "serve/http/http.h"

namespace moracle::serve {

Status HttpServer::check_tls(const HttpOptions&) {
  return available();
}

Status HttpServer::available() {
  return Error{ErrorKind::kUnsupported, "", "serve",
               "a build with Boost.Beast: install libboost-dev and build again",
               "this build has none"};
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions&, HttpHandler) {
  return available().error();
}

}  // namespace moracle::serve
#endif
