// DEPTH pipeline stages in a row.
module pipe_chain #(
  parameter WIDTH = 8,
  parameter DEPTH = 4
) (
  input  logic             clk,
  input  logic             rst_n,
  input  logic             in_valid,
  output logic             in_ready,
  input  logic [WIDTH-1:0] in_data,
  output logic             out_valid,
  input  logic             out_ready,
  output logic [WIDTH-1:0] out_data
);

  // Link i lies before stage i; link DEPTH is the output.
  logic [DEPTH:0]           link_valid;
  logic [DEPTH:0]           link_ready;
  logic [(DEPTH+1)*WIDTH-1:0] link_data;

  assign link_valid[0]          = in_valid;
  assign link_data[WIDTH-1:0]   = in_data;
  assign in_ready               = link_ready[0];
  assign out_valid              = link_valid[DEPTH];
  assign out_data               = link_data[DEPTH*WIDTH+:WIDTH];
  assign link_ready[DEPTH]      = out_ready;

  genvar i;
  generate
    for (i = 0; i < DEPTH; i = i + 1) begin : g_stage
      pipe_stage #(
        .WIDTH(WIDTH)
      ) stage (
        .clk      (clk),
        .rst_n    (rst_n),
        .in_valid (link_valid[i]),
        .in_ready (link_ready[i]),
        .in_data  (link_data[i*WIDTH+:WIDTH]),
        .out_valid(link_valid[i+1]),
        .out_ready(link_ready[i+1]),
        .out_data (link_data[(i+1)*WIDTH+:WIDTH])
      );
    end
  endgenerate

endmodule
