module fixed_priority_arbiter (
    input  wire       clk,
    input  wire       reset,
    input  wire [7:0] req,
    input  wire [7:0] priority_override,
    output reg  [7:0] grant,
    output reg        valid,
    output reg  [2:0] grant_index
);
    wire [7:0] active = (priority_override != 0) ? priority_override : req;
    reg  [2:0] index;
    integer    i;

    always @* begin
        index = 0;
        for (i = 7; i >= 0; i = i - 1)
            if (active[i]) index = i[2:0];
    end

    always @(posedge clk) begin
        if (reset) begin
            grant <= 0;
            valid <= 0;
            grant_index <= 0;
        end else begin
            grant <= active & -active;
            valid <= active != 0;
            grant_index <= index;
        end
    end
endmodule
