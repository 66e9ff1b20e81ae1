// Swagger UI for this server's openapi.json.

/** Play the received audio. Swagger UI itself would request the operation's URL again, with GET and without the key. */
const playReceivedAudio = ({ React }) => ({
  wrapComponents: {
    responseBody: (ResponseBody) => (props) => {
      const { content } = props;
      const url = React.useMemo(() => (content instanceof Blob ? URL.createObjectURL(content) : null), [content]);
      return React.createElement(ResponseBody, url ? { ...props, url } : props);
    },
  },
});

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null, // the default is a service on the internet
  plugins: [playReceivedAudio],
});
