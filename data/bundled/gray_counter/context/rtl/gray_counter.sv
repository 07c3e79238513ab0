module gray_counter #(
    parameter WIDTH = 4
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             en,
    input  logic             down,
    output logic [WIDTH-1:0] gray,
    output logic [WIDTH-1:0] binary
);

    logic [WIDTH-1:0] count;
    logic [WIDTH-1:0] next_count;

    assign next_count = down ? count - 1'b1 : count + 1'b1;

    always_ff @(posedge clk) begin
        if (rst && !en) begin
            count <= '0;
            gray  <= '0;
        end else if (en) begin
            count <= next_count;
            gray  <= count ^ (count << 1);
        end
    end

    gray_to_binary u_gray_to_binary (
        .gray  (gray),
        .binary(binary)
    );

endmodule
