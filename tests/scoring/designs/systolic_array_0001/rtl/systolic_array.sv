// Inputs run to the right, sums run down; both inputs are held while `start` is, until the last sum has settled.
module systolic_array #(parameter DATA_WIDTH = 8) (
    input  wire                  clk,
    input  wire                  reset,
    input  wire                  load_weights,
    input  wire                  start,
    input  wire [DATA_WIDTH-1:0] w00,
    input  wire [DATA_WIDTH-1:0] w01,
    input  wire [DATA_WIDTH-1:0] w10,
    input  wire [DATA_WIDTH-1:0] w11,
    input  wire [DATA_WIDTH-1:0] x0,
    input  wire [DATA_WIDTH-1:0] x1,
    output wire [DATA_WIDTH-1:0] y0,
    output wire [DATA_WIDTH-1:0] y1,
    output reg                   done
);
    wire [DATA_WIDTH-1:0] weights [0:3];
    wire [DATA_WIDTH-1:0] right [0:5];
    wire [DATA_WIDTH-1:0] down [0:5];
    reg  [1:0] count;

    assign weights[0] = w00;
    assign weights[1] = w01;
    assign weights[2] = w10;
    assign weights[3] = w11;
    assign right[0] = x0;
    assign right[3] = x1;
    assign down[0] = 0;
    assign down[1] = 0;
    assign y0 = down[4];
    assign y1 = down[5];

    genvar row, column;
    generate
        for (row = 0; row < 2; row = row + 1) begin : rows
            for (column = 0; column < 2; column = column + 1) begin : columns
                weight_stationary_pe #(.DATA_WIDTH(DATA_WIDTH)) pe (
                    .clk(clk), .reset(reset), .load_weight(load_weights), .valid(start),
                    .input_in(right[3*row+column]), .weight(weights[2*row+column]), .psum_in(down[2*row+column]),
                    .input_out(right[3*row+column+1]), .psum_out(down[2*row+column+2])
                );
            end
        end
    endgenerate

    always @(posedge clk or posedge reset)
        if (reset) {count, done} <= 0;
        else begin
            count <= !start ? 0 : count == 3 ? 3 : count + 1;
            done <= start && count >= 2;
        end
endmodule
