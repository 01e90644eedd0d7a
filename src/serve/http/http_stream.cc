#ifdef MORACLE_WITH_HTTP
#include "serve/http/http_stream.h"

namespace moracle::serve {

HttpStream::HttpStream(boost::asio::ip::tcp::socket socket, [[maybe_unused]] TlsContext* tls)
    : tcp_(std::move(socket)) {
#ifdef MORACLE_WITH_TLS
  if (tls)
    tls_ =
        std::make_unique<boost::asio::ssl::stream<boost::beast::tcp_stream&>>(tcp_, tls->context);
#endif
}

}  // namespace moracle::serve
#endif
