// The server's certificate and key.
#pragma once

#ifdef MORACLE_WITH_TLS
#include <boost/asio/ssl.hpp>
#endif
#include <memory>

#include "serve/http/http.h"

namespace moracle::serve {

struct TlsContext {
#ifdef MORACLE_WITH_TLS
  boost::asio::ssl::context context{boost::asio::ssl::context::tls_server};
#endif

  /// Reads HttpOptions::tls_cert and tls_key. Null: neither is given. Errors: one without the
  /// other; a file that is missing, or holds no certificate or key in PEM; a key with a pass
  /// phrase; a key of another certificate; kUnsupported in a build without OpenSSL.
  static Result<std::unique_ptr<TlsContext>> open(const HttpOptions& options);
};

}  // namespace moracle::serve
