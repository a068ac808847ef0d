package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// TLS always; a certificate of one's own (key and chain in one file) and a login if they are named.
type secrets struct {
	Ca        string `json:"ca"`
	Pem       string `json:"pem"`
	Mechanism string `json:"mechanism"`
	Username  string `json:"username"`
	Password  string `json:"password"`
	Token     string `json:"token"`
}

func (s *secrets) options() ([]kgo.Opt, error) {
	ca, err := os.ReadFile(s.Ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(ca)
	if s.Pem != "" {
		own, err := tls.LoadX509KeyPair(s.Pem, s.Pem)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	options := []kgo.Opt{kgo.DialTLSConfig(config)}
	if s.Mechanism == "" {
		return options, nil
	}
	login, err := s.login()
	return append(options, kgo.SASL(login)), err
}

func (s *secrets) login() (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Auth{Token: s.Token}.AsMechanism(), nil
	}
	return nil, fmt.Errorf("not known: %s", s.Mechanism)
}
